// How fast a job's steps are committed lately, and how long the rest will take at that pace.
//
//   StepRate rate;
//   rate.Add(0, clock.Now());      the first step begins
//   rate.Add(20, clock.Now());     20 steps are committed
//   rate.TimeLeft(600);            what 580 steps take, or nothing while that is not known
//
// Looks back `window` from the last step that was added: a pause for an evaluation or another
// machine's load is averaged, an early and slower part is forgotten. Keeps about 64 marks, however
// many steps there are.
//
// Pure: times are the caller's. Not thread-safe.
#ifndef TESSERA_COORDINATOR_STEP_RATE_H_
#define TESSERA_COORDINATOR_STEP_RATE_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"

namespace tessera {

class StepRate {
 public:
  explicit StepRate(absl::Duration window = absl::Minutes(1)) : window_(window) {}

  // `steps` are committed at `now`. What is not more than before is no news and ignored.
  void Add(int64_t steps, absl::Time now);

  // Until `steps` are committed, counted from the last Add. Nothing: two different times are not
  // known yet, or no step is left.
  std::optional<absl::Duration> TimeLeft(int64_t steps) const;

 private:
  struct Mark {
    int64_t steps = 0;
    absl::Time time;
  };

  absl::Duration window_;
  std::deque<Mark> marks_;  // both fields grow
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STEP_RATE_H_
