// Why a module is a unit or is not.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::ExplainModuleResponse why, ExplainModule(resolved, "h.0"));
//   for (const std::string& reason : why.reasons()) Print(reason);
//
// Thread-safety: a pure function.
#ifndef TESSERA_COORDINATOR_EXPLAIN_H_
#define TESSERA_COORDINATOR_EXPLAIN_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {

// Reasons are sentences in the order in which the planner asks, with the numbers that it compares:
// what is ignored, aliases, the gates of the modules around it and its own, what the units below it
// report and what is left for it, the wrap test, what makes units whatever the policy says, where
// it and its parameters are in the end, and settings of its own. unit_fqn is "" for the root unit,
// and where no unit holds it, which the reasons tell apart.
//
// `fqn` "" is the root. INVALID_ARGUMENT: as PlanJob without a layout; or `fqn` is no module of the
// model (Field(status) is "fqn").
absl::StatusOr<v1::ExplainModuleResponse> ExplainModule(const v1::JobSpec& resolved,
                                                        absl::string_view fqn);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_EXPLAIN_H_
