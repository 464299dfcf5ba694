// Model and policies -> Plan: units in post-order with their parameters and dtypes. Knows no world
// size.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::Plan plan,
//                            MakePlan(model, resolved.wrap(), resolved.mixed_precision()));
//
// Holds of every plan:
//   - each parameter is in exactly one unit: that of the nearest enclosing module that is a unit. A
//     parameter in use in several places (ties, aliases) is stored once, in the lowest unit that
//     covers all its users, and a note says where it moved;
//   - the root is the last unit, also where nothing is left for it (numel 0);
//   - a unit's parameters have one original dtype, and param_dtype and reduce_dtype are set;
//   - the same model and policies give the same plan, and initial values do not change
//     plan_fingerprint.
#ifndef TESSERA_COORDINATOR_PLANNER_H_
#define TESSERA_COORDINATOR_PLANNER_H_

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// An empty unit has the dtypes that the model's first parameter would give it. INVALID_ARGUMENT:
// the model is not valid (ValidateModelSpec), the policy does not fit it (ChooseUnits), a dtype is
// unknown, or a unit would have parameters of different dtypes; the message names one of each.
absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                  const v1::MixedPrecisionSpec& mixed_precision);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLANNER_H_
