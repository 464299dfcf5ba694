#include "common/clock.h"

#include <time.h>

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

const Clock* Clock::Real() {
  static const RealClock clock;
  return &clock;
}

}  // namespace tessera
