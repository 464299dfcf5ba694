// A plan as one page of HTML that needs no network: the module tree cut into units, a treemap by
// bytes, memory over a step, tables and notes. What it says it says without a script too, but for
// the treemap. Whatever names hold is shown as text, and the page of a model of 100,000 modules
// stays below 2 MB: equal siblings are folded, the rest is shown by size.
//
//   TESSERA_ASSIGN_OR_RETURN(const std::string page,
//                            PlanPage({model, plan, layout, forecast, resolved}));
//
// Thread-safety: a pure function.
#ifndef TESSERA_CLIENT_PLAN_PAGE_H_
#define TESSERA_CLIENT_PLAN_PAGE_H_

#include <string>

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct PlanPageInput {
  const v1::ModelSpec& model;
  const v1::Plan& plan;
  const v1::Layout& layout;
  const v1::Forecast& forecast;
  const v1::JobSpec& resolved;
};

// INVALID_ARGUMENT: the model is not valid.
absl::StatusOr<std::string> PlanPage(const PlanPageInput& input);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PLAN_PAGE_H_
