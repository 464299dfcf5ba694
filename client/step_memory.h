// What of a rank's planned memory is in use while a step goes on: the coordinator's timeline of a
// step, thinned to what a page has room for. All of it but activations is mapped before the first
// step and stays; here is what holds something at each point.
//
//   const StepMemory memory = MakeStepMemory(StepTimeline(plan, layout, activations), layout,
//                                            forecast, /*max_points=*/200);
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_STEP_MEMORY_H_
#define TESSERA_CLIENT_STEP_MEMORY_H_

#include <cstdint>
#include <vector>

#include "coordinator/timeline.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct StepMemory {
  // In use all the time, of a rank alone.
  int64_t parameter_bytes = 0;
  int64_t reduced_gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t other_bytes = 0;  // undo, step record, padding; buffers and parameters in no unit
  // Of what the layout planned for whole units, and for one rank's gradients: unsharded,
  // accumulated and staged, and what stays of units that are resharded.
  int64_t planned_unsharded_bytes = 0;
  int64_t planned_gradient_bytes = 0;
  std::vector<StepPoint> points;

  int64_t fixed_bytes() const {
    return parameter_bytes + reduced_gradient_bytes + optimizer_bytes + other_bytes;
  }
  int64_t planned_bytes() const {
    return fixed_bytes() + planned_unsharded_bytes + planned_gradient_bytes;
  }
  // The most that is in use at a point.
  int64_t peak_bytes() const;
};

// Gradients, staging and what is resharded.
int64_t GradientBytes(const StepPoint& point);
// All that a point has beside what is there all the time.
int64_t LiveBytes(const StepPoint& point);

// `timeline` is of `layout`, and so is `forecast`; the rank is the one with the most bytes of its
// own. Of many points at most `max_points` (at least 3) are left, each the largest of the run that
// it stands for.
StepMemory MakeStepMemory(const std::vector<StepPoint>& timeline, const v1::Layout& layout,
                          const v1::Forecast& forecast, int max_points);

}  // namespace tessera

#endif  // TESSERA_CLIENT_STEP_MEMORY_H_
