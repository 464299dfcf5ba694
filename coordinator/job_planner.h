// Everything that is decided about a job before it runs.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(spec));
//   TESSERA_ASSIGN_OR_RETURN(const JobPlan planned, PlanJob(resolved, /*world_size=*/2));
//   TESSERA_RETURN_IF_ERROR(CheckRunnable(resolved, planned));
//
// Thread-safety: pure functions of values.
#ifndef TESSERA_COORDINATOR_JOB_PLANNER_H_
#define TESSERA_COORDINATOR_JOB_PLANNER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct JobPlan {
  v1::Plan plan;
  v1::Layout layout;
  v1::Forecast forecast;
};

// Plan, layout and forecast of a resolved job at `world_size`, which need not be one that the job
// may run at. INVALID_ARGUMENT: as ModelOf, MakePlan and MakeLayout.
absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& resolved, int world_size);

// The largest world size of at most `available` workers that the job may run at: within its mesh's
// bounds, a multiple of what each host has, and dividing global_batch / micro_batches. 0: there is
// none.
int ChooseWorldSize(const v1::JobSpec& resolved, int available);

// Refuses what can be planned and not yet run. INVALID_ARGUMENT: Field(status) says which field,
// the message what there is.
absl::Status CheckRunnable(const v1::JobSpec& resolved, const v1::Plan& plan);
// And what the workload's own way through the plan needs of its layout.
absl::Status CheckRunnable(const v1::JobSpec& resolved, const JobPlan& planned);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_JOB_PLANNER_H_
