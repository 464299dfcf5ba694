#include "worker/step_recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

int64_t Newest(const KeptSteps& rank) { return std::max(rank.step[0], rank.step[1]); }

// Of the rank's vote for the step; 0: it has none.
int64_t AttemptAt(const KeptSteps& rank, int64_t step) {
  return step > 0 && rank.step[step % 2] == step ? rank.attempt[step % 2] : 0;
}

}  // namespace

KeptSteps KeptStepsOf(const ShardStore& store, int64_t start) {
  KeptSteps kept;
  kept.start = start;
  const int64_t newest = store.LastVote().step;
  for (const int64_t step : {newest, newest - 1}) {
    const Vote vote = store.VoteOf(step);
    if (vote.step == 0) continue;
    kept.step[step % 2] = step;
    kept.attempt[step % 2] = vote.attempt;
    kept.order_hash[step % 2] = static_cast<int64_t>(vote.order_hash);
  }
  return kept;
}

absl::StatusOr<RecoveryPoint> FindRecoveryPoint(absl::Span<const KeptSteps> ranks) {
  int64_t least = Newest(ranks.front()), greatest = least;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].start != ranks[0].start) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " starts at step ", ranks[rank].start, ", rank 0 at ",
                       ranks[0].start, "; do all hosts see the same checkpoint.dir?"));
    }
    least = std::min(least, Newest(ranks[rank]));
    greatest = std::max(greatest, Newest(ranks[rank]));
  }
  RecoveryPoint point;
  point.committed = ranks[0].start;
  // A rank without a vote: nothing was committed after the start.
  if (least > 0) {
    const KeptSteps& first = ranks[0];
    bool committed = true;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const int64_t attempt = AttemptAt(ranks[rank], least);
      if (attempt == 0 || (greatest > least + 1)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", rank, " has voted for step ", Newest(ranks[rank]), ", another rank for step ",
            least, "; their memory files are not of one job"));
      }
      committed = committed && attempt == AttemptAt(first, least);
      if (attempt == AttemptAt(first, least) &&
          ranks[rank].order_hash[least % 2] != first.order_hash[least % 2]) {
        return absl::FailedPreconditionError(
            absl::StrCat("ranks 0 and ", rank, " voted for step ", least, " with other orders"));
      }
    }
    point.committed = committed ? least : least - 1;
  }
  point.voted = point.committed > ranks[0].start;
  for (const KeptSteps& rank : ranks)
    point.attempt = std::max(point.attempt, AttemptAt(rank, point.committed + 1) + 1);
  return point;
}

}  // namespace tessera
