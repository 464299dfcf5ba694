// What a history is drawn from: one seed gives the same numbers on every machine.
#ifndef TESSERA_TESTS_SIMULATION_RANDOM_H_
#define TESSERA_TESTS_SIMULATION_RANDOM_H_

#include <cstdint>

#include "absl/time/time.h"

namespace tessera::simulation {

// SplitMix64. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t mixed = state_ += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  // From low to high, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool Percent(int64_t percent) { return Between(1, 100) <= percent; }
  absl::Duration Delay(absl::Duration low, absl::Duration high) {
    return absl::Microseconds(
        Between(absl::ToInt64Microseconds(low), absl::ToInt64Microseconds(high)));
  }

 private:
  uint64_t state_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_RANDOM_H_
