// Where each rank of a generation is, as it last said, and what follows when some keep the others
// waiting.
//
//   RankPositions positions(/*ranks=*/3, /*silent_after=*/absl::Seconds(3));
//   positions.Record(1, heartbeat.position(), now);
//   positions.Describe(1, names, now)
//       "computes on unit h.0 (forward) in step 12 for 3.4s, operation 37, not heard of for 3.1s"
//   if (auto stuck = positions.FindStuck({1}, names, now)) ... stuck->sentence
//
// A rank's words grow old between its heartbeats: the times here are from when it got there until
// `now`, as far as anybody has heard.
//
// Pure: no clock or lock; the caller locks.
#ifndef TESSERA_COORDINATOR_RANK_POSITIONS_H_
#define TESSERA_COORDINATOR_RANK_POSITIONS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

// Name of a unit of the plan, for people.
using UnitNames = absl::FunctionRef<std::string(int unit)>;

class RankPositions {
 public:
  RankPositions() = default;
  // silent_after: of a rank that was not heard of for longer this is said.
  RankPositions(int ranks, int units, absl::Duration silent_after)
      : units_(units), silent_after_(silent_after), places_(ranks) {}

  // Keeps the newest, but for REJOINING: of a rank that has left the generation, where it was is
  // what says why. What makes no sense (a rank or unit that does not exist, a time before the
  // beginning) is not kept.
  void Record(int rank, const v1::Position& position, absl::Time now);

  // "" where the rank has not said anything.
  std::string Describe(int rank, UnitNames names, absl::Time now) const;
  // Of the first `limit` ranks: "rank 0: ...".
  std::vector<std::string> DescribeAll(int limit, UnitNames names, absl::Time now) const;

  // Ranks that the others wait for.
  struct Stuck {
    std::vector<int> ranks;
    // Where the others wait; -1 and OPERATION_UNSPECIFIED: not in an operation of a unit.
    int unit = -1;
    v1::Operation operation = v1::OPERATION_UNSPECIFIED;
    // "rank 1 computes on ..., while ranks 0, 2 have waited 3.0s in reduce of unit h.1 (operation
    // 40)".
    std::string sentence;
  };
  // `blamed`, and who else does not wait and is silent, or has issued fewer collectives than those
  // that wait. None: nobody waits.
  std::optional<Stuck> FindStuck(const std::set<int>& blamed, UnitNames names,
                                 absl::Time now) const;

 private:
  struct Place {
    bool said = false;
    v1::Position position;
    absl::Time since;
    absl::Time heard;
  };
  bool Silent(const Place& place, absl::Time now) const;
  bool IsBehind(const Place& place, const Place& front, absl::Time now) const;

  int units_ = 0;
  absl::Duration silent_after_ = absl::InfiniteDuration();
  std::vector<Place> places_;
};

// "reduce wait" for REDUCE_WAIT.
std::string OperationText(v1::Operation operation);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RANK_POSITIONS_H_
