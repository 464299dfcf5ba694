// Plans one module of a model that is still being built.
//
//   TESSERA_ASSIGN_OR_RETURN(const SealedUnits units,
//                            PlanModule(resolved, 2, "h.0", module, wrap, /*wraps_itself=*/true));
//
// Pure.
#ifndef TESSERA_COORDINATOR_DRAFT_PLANNING_H_
#define TESSERA_COORDINATOR_DRAFT_PLANNING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// A unit with absolute FQNs, and its flat parameter: no enclosing unit, no level, no place in a
// file.
struct SealedUnit {
  v1::Unit unit;
  v1::UnitLayout layout;
};
using SealedUnits = std::vector<SealedUnit>;

// Of wrap what the job says for all units, whatever the policy is.
void CopyJobsWrap(const v1::JobSpec& resolved, v1::WrapSpec* wrap);

// The units that `wrap` makes of the module `fqn`, which holds no stubs; ties are absolute FQNs,
// the policy's patterns begin at the module. What no unit holds is in none. `wraps_itself`: the
// module is a unit, whatever the policy says; the root is one as the job's wrap.root_unit says.
// What CopyJobsWrap copies and mixed precision are the job's. Errors: as ResolveJobSpec and
// PlanJob.
absl::StatusOr<SealedUnits> PlanModule(const v1::JobSpec& resolved, int world_size,
                                       const std::string& fqn, v1::Module module, v1::WrapSpec wrap,
                                       bool wraps_itself);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_DRAFT_PLANNING_H_
