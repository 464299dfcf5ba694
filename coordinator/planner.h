// Model and policies -> Plan: units in post-order with their parameters and dtypes. Knows no world
// size.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(model, resolved));
//
// Holds of every plan:
//   - each parameter is in exactly one unit: that of the nearest enclosing module that is a unit. A
//     parameter in use in several places (ties, aliases) is stored once, in the lowest unit that
//     covers all its users, and a note says where it moved. Only what wrap.ignore names, and, with
//     wrap.root_unit by_policy, what no unit encloses, is in none: Plan.ignored and Plan.orphans
//     list it;
//   - the root is the last unit, also where nothing is left for it (numel 0), unless
//     wrap.root_unit is by_policy and the policy leaves it out;
//   - a unit's parameters have one original dtype, and every dtype but input_dtype is set;
//   - the same model and policies give the same plan, and initial values do not change
//     plan_fingerprint.
//
// wrap.mixed_dtypes split: a module whose parameters have several dtypes becomes a unit for each.
// The first parameter's dtype has the module's FQN, the others the FQN, a colon and their dtype
// ("layers.0:bfloat16"). They form a chain: each such unit is enclosed by the one of the dtype met
// before it, and what the module encloses is enclosed by the last, so that all of them may be whole
// together. Buffers stay with the first.
//
// Thread-safety: pure functions. Time is linear in the size of the model.
#ifndef TESSERA_COORDINATOR_PLANNER_H_
#define TESSERA_COORDINATOR_PLANNER_H_

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// With wrap, mixed_precision and mesh of `resolved`. An empty unit has the dtypes that the model's
// first parameter would give it. INVALID_ARGUMENT: the model is not valid (ValidateModelSpec), the
// policy does not fit it (ChooseUnits), a tie is refused (FindUnitHomes), a dtype or an override is
// wrong (UnitSettings), or a unit would have parameters of different dtypes; the message names one
// of each.
absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::JobSpec& resolved);

// The same without a mesh.
absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                  const v1::MixedPrecisionSpec& mixed_precision);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLANNER_H_
