// Which units are gathered ahead: FSDP2's set_modules_to_forward_prefetch and
// set_modules_to_backward_prefetch.
#ifndef TESSERA_WORKER_PREFETCH_LISTS_H_
#define TESSERA_WORKER_PREFETCH_LISTS_H_

#include <vector>

#include "absl/status/status.h"
#include "worker/session.h"

namespace tessera {

// From now on Unshard(unit) for a forward (kForward) or for a backward (kBackward, kRecompute)
// starts to gather `ahead`, in this order, in place of what comes next in the order of the steps.
// At most memory.prefetch of them, as the layout planned slots for no more; those beyond, and those
// for which no slot is free, wait for their own Unshard. An empty list gathers nothing ahead. A
// list that is wrong costs time and never memory. memory.backward_prefetch still says when in the
// backward. Every rank gives the same lists. NOT_FOUND: no such unit. FAILED_PRECONDITION: inside a
// step. INVALID_ARGUMENT: `phase` is kEval.
absl::Status SetPrefetch(Session& session, int unit, Phase phase, std::vector<int> ahead);

}  // namespace tessera

#endif  // TESSERA_WORKER_PREFETCH_LISTS_H_
