// Whether the slots of a layout are enough for the workload gpt, which uses all of a block at once,
// together with what is outside the blocks: whatever units these are cut into. For CheckRunnable.
#ifndef TESSERA_COORDINATOR_GPT_SLOTS_H_
#define TESSERA_COORDINATOR_GPT_SLOTS_H_

#include "absl/status/status.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// `plan` is of the builtin gpt, `layout` of the plan. INVALID_ARGUMENT: units that are used
// together cannot all be whole (memory.max_live_units) or have gradients
// (memory.accumulate_unsynchronized); the message names some and says what to give.
absl::Status CheckGptSlots(const v1::Plan& plan, const v1::Layout& layout);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_GPT_SLOTS_H_
