// Many histories hold the invariants. TESSERA_SIMULATION_HISTORIES: how many (10,000).
// TESSERA_SIMULATION_SEED: the first (1); a history that failed is repeated by its seed and 1.
#include <cstdlib>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/simulation/history.h"

namespace tessera::simulation {
namespace {

int64_t Setting(const char* name, int64_t otherwise) {
  int64_t value = 0;
  const char* text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(SimulationTest, HistoriesHoldTheInvariants) {
  HistoryOptions options;
  options.plan.recovery = options.plan.restarts = true;
  Totals totals;
  const int64_t count = Setting("TESSERA_SIMULATION_HISTORIES", 10000);
  const std::string wrong =
      RunHistories(options, Setting("TESSERA_SIMULATION_SEED", 1), count, &totals);
  EXPECT_TRUE(wrong.empty()) << wrong;
  for (const auto& [state, ended] : totals.ends) {
    std::cout << v1::JobState_Name(state) << " " << ended << "\n";
  }
  std::cout << "recoveries " << totals.recoveries << ", restarts of the coordinator "
            << totals.restarts << "\n";
}

}  // namespace
}  // namespace tessera::simulation
