// Time as a value that tests can set. Leases and deadlines are measured on a monotonic clock that
// does not jump.
#ifndef TESSERA_COMMON_CLOCK_H_
#define TESSERA_COMMON_CLOCK_H_

#include "absl/time/time.h"

namespace tessera {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: only differences mean anything.
  virtual absl::Time Now() const = 0;
  // Wall clock: for showing to people and nothing else.
  virtual absl::Time WallNow() const = 0;

  // The machine's. Lives for ever.
  static const Clock* Real();
};

// `left` as poll(2) takes it: whole milliseconds, rounded up so that a wait does not end early and
// turn into a busy loop; 0 for what has passed; at most 2^30 (twelve days), also for ever.
int PollTimeout(absl::Duration left);

}  // namespace tessera

#endif  // TESSERA_COMMON_CLOCK_H_
