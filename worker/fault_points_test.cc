#include "worker/fault_points.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FaultPointsTest, MalformedTextIsRefused) {
  for (const char* text : {"rank", "rank=x,point=a,action=kill", "rank=0,action=kill",
                           "rank=0,point=a,action=dance", "rank=0,point=a,action=kill,step=soon"}) {
    EXPECT_EQ(FaultPoints::Parse(text, 0).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(FaultPointsDeathTest, KillsAtItsPointStepAndRankAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto other = FaultPoints::Parse("rank=1,point=reduce,step=7,action=kill", 0);
  ASSERT_TRUE(other.ok());
  other->set_step(7);
  other->Hit("reduce");
  auto faults = FaultPoints::Parse("rank=1,point=reduce,step=7,action=kill", 1);
  ASSERT_TRUE(faults.ok());
  faults->set_step(6);
  faults->Hit("reduce");
  faults->set_step(7);
  faults->Hit("vote");
  EXPECT_EXIT(faults->Hit("reduce"), ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace tessera
