// What a plan may have that workers cannot do yet.
#ifndef TESSERA_COORDINATOR_PLAN_RUNNABLE_H_
#define TESSERA_COORDINATOR_PLAN_RUNNABLE_H_

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Workers take units in float32 that are gathered and reduced in float32, bfloat16 or float16, each
// unit in its own, with any frozen parameters; reduced gradients go back to float32 and are divided
// by the number of ranks. INVALID_ARGUMENT: the plan asks for more; Field(status) is the setting
// that asks, or a parameter.
absl::Status CheckPlanRunnable(const v1::JobSpec& resolved, const v1::Plan& plan);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLAN_RUNNABLE_H_
