// A step's memory as an SVG that scales with its page.
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_STEP_CHART_H_
#define TESSERA_CLIENT_STEP_CHART_H_

#include <cstdint>
#include <string>

#include "client/step_memory.h"

namespace tessera {

// 1,000 wide, a point a column of the same width, its bands from the bottom: parameters, reduced
// gradients, optimizer, others, units that are whole, gradients that are not reduced, activations
// (classes m0 to m6). A dashed line at what is planned, and a line (id "cursor") for a script to
// move. No text: its `label`, which is escaped, says what it is.
std::string StepChart(const StepMemory& memory, const std::string& label);

// What the chart's upper edge stands for.
int64_t StepChartTop(const StepMemory& memory);

}  // namespace tessera

#endif  // TESSERA_CLIENT_STEP_CHART_H_
