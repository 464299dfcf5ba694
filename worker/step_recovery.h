// Which step a job that lost a rank goes on with. Every rank says what its memory file has kept,
// and all find the same from it.
//
//   const KeptSteps own = KeptStepsOf(store, start);
//   ... every rank's, in rank order ...
//   TESSERA_ASSIGN_OR_RETURN(const RecoveryPoint point, FindRecoveryPoint(all));
//
// The newest votes of any two ranks are at most one step apart: nobody votes for a step before
// everybody has voted for the one before. So S, the least of them, is the only step in doubt. It is
// committed if and only if all votes for it are of one attempt. If it is, whoever has not done so
// finishes it, and S + 1 is next; if not, no rank's shards have changed, and S is run again.
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_STEP_RECOVERY_H_
#define TESSERA_WORKER_STEP_RECOVERY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/shard_store.h"

namespace tessera {

// What one rank's file says. Plain bytes: it is exchanged as it is.
struct KeptSteps {
  int64_t start = 0;           // with what step its shards were filled
  int64_t step[2] = {};        // of its votes, by parity; 0: none
  int64_t attempt[2] = {};     // of these
  int64_t order_hash[2] = {};  // of these
};

struct RecoveryPoint {
  int64_t committed = 0;  // the last step committed
  bool voted = false;     // every file has a vote for it; false: the shards were filled with it
  int64_t attempt = 1;    // of the step after it
};

KeptSteps KeptStepsOf(const ShardStore& store, int64_t start);

// `ranks`: in rank order, not empty. FAILED_PRECONDITION: they cannot be of one job: filled with
// different steps (do all hosts see the same checkpoint.dir?), further apart than a step, or of
// different orders; names the ranks.
absl::StatusOr<RecoveryPoint> FindRecoveryPoint(absl::Span<const KeptSteps> ranks);

}  // namespace tessera

#endif  // TESSERA_WORKER_STEP_RECOVERY_H_
