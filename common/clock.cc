#include "common/clock.h"

#include <time.h>

#include <algorithm>
#include <cstdint>

#include "absl/time/clock.h"

namespace tessera {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return absl::TimeFromTimespec(now);
  }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace

int PollTimeout(absl::Duration left) {
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1 << 30));
}

const Clock* Clock::Real() {
  static const RealClock clock;
  return &clock;
}

}  // namespace tessera
