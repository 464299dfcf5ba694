// The parts of a plan's page that come of its forecast: does it fit, tables of ranks, GPUs and
// hosts, activations by class.
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_PLAN_PAGE_FORECAST_H_
#define TESSERA_CLIENT_PLAN_PAGE_FORECAST_H_

#include <string>

#include "tessera/v1/plan.pb.h"

namespace tessera {

// What is needed, what there is, and what would help; nothing where no device memory was given.
std::string FitSection(const v1::Forecast& forecast);

// Bytes of ranks, of their GPUs where they have some, of hosts, and on the wire; activations by
// class where there are some.
std::string ForecastSections(const v1::Forecast& forecast);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PLAN_PAGE_FORECAST_H_
