// What a plan may have that workers cannot do yet.
#ifndef TESSERA_COORDINATOR_PLAN_RUNNABLE_H_
#define TESSERA_COORDINATOR_PLAN_RUNNABLE_H_

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Workers on CPUs take units in any floating-point dtypes, each in its own, with any frozen
// parameters; those on GPUs masters and reduced gradients in float32 alone. The program casts its
// inputs and buffers itself. INVALID_ARGUMENT: the plan asks for more; Field(status) is the setting
// that asks, or a parameter.
absl::Status CheckPlanRunnable(const v1::JobSpec& resolved, const v1::Plan& plan);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLAN_RUNNABLE_H_
