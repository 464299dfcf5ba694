// A clock that stands still until a test moves it. Thread-safe.
//
//   SimulatedClock clock;
//   Coordinator coordinator({.clock = &clock});
//   clock.Advance(absl::Seconds(6));
#ifndef TESSERA_COMMON_SIMULATED_CLOCK_H_
#define TESSERA_COMMON_SIMULATED_CLOCK_H_

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace tessera {

class SimulatedClock final : public Clock {
 public:
  absl::Time Now() const override { return Read(); }
  absl::Time WallNow() const override { return Read(); }

  void Advance(absl::Duration duration) {
    MutexLock lock(mutex_);
    now_ += duration;
  }

 private:
  absl::Time Read() const {
    MutexLock lock(mutex_);
    return now_;
  }

  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1000000);
};

}  // namespace tessera

#endif  // TESSERA_COMMON_SIMULATED_CLOCK_H_
