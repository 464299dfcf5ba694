#include "worker/fault_points.h"

#include <signal.h>

#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(FaultPointsTest, MalformedTextIsRefused) {
  for (const char* text :
       {"rank", "rank=x,point=a,action=kill", "rank=0,action=kill", "rank=0,point=a,action=dance",
        "rank=0,point=a,action=kill,step=soon", "rank=0,point=a,action=kill,generation=next"}) {
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

TEST(FaultPointsDeathTest, SeveralFaultsOfOneRankAllCount) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* const text =
      "rank=1,point=vote,step=3,action=kill;rank=0,point=vote,action=kill;"
      "rank=1,point=reduce,step=7,action=kill;rank=1,point=join,generation=2,action=kill";
  auto faults = FaultPoints::Parse(text, 1);
  ASSERT_TRUE(faults.ok()) << faults.status();
  faults->Hit("join");
  faults->set_step(7);
  faults->Hit("vote");
  EXPECT_EXIT(faults->Hit("reduce"), ::testing::KilledBySignal(SIGKILL), "");
  faults->set_step(3);
  EXPECT_EXIT(faults->Hit("vote"), ::testing::KilledBySignal(SIGKILL), "");
  auto restarted = FaultPoints::Parse(text, 1, /*generation=*/2);
  ASSERT_TRUE(restarted.ok());
  restarted->set_step(7);
  restarted->Hit("reduce");
  EXPECT_EXIT(restarted->Hit("join"), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_FALSE(FaultPoints::Parse("rank=1,point=vote,action=kill;", 1).ok());
}

TEST(FaultPointsTest, SpoilsOnceAtItsPointStepAndRankAlone) {
  const char* const text = "rank=1,point=reduced,step=7,action=spoil";
  auto other = FaultPoints::Parse(text, 0), faults = FaultPoints::Parse(text, 1);
  ASSERT_TRUE(other.ok() && faults.ok());
  other->set_step(7);
  EXPECT_FALSE(other->Spoils("reduced"));
  faults->set_step(6);
  EXPECT_FALSE(faults->Spoils("reduced"));
  faults->set_step(7);
  EXPECT_FALSE(faults->Spoils("vote"));
  EXPECT_TRUE(faults->Spoils("reduced"));
  EXPECT_FALSE(faults->Spoils("reduced"));
}

TEST(FaultPointsTest, BelongsToTheProcessesOfItsGeneration) {
  const std::string text = "rank=1,point=reduced,action=spoil";
  EXPECT_TRUE(FaultPoints::Parse(text, 1, /*generation=*/1)->Spoils("reduced"));
  EXPECT_FALSE(FaultPoints::Parse(text, 1, 2)->Spoils("reduced"));
  EXPECT_TRUE(FaultPoints::Parse(text + ",generation=2", 1, 2)->Spoils("reduced"));
  EXPECT_FALSE(FaultPoints::Parse(text + ",generation=2", 1, 1)->Spoils("reduced"));
}

}  // namespace
}  // namespace tessera
