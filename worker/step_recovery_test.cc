#include "worker/step_recovery.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// A file with votes for `newest` and the step before it, both of attempt 1 but for `attempt`.
KeptSteps File(int64_t newest, int64_t attempt = 1, int64_t start = 0) {
  KeptSteps kept;
  kept.start = start;
  for (const int64_t step : {newest, newest - 1}) {
    if (step <= start) continue;
    kept.step[step % 2] = step;
    kept.attempt[step % 2] = step == newest ? attempt : 1;
    kept.order_hash[step % 2] = 7;
  }
  return kept;
}

RecoveryPoint PointOf(std::vector<KeptSteps> ranks) {
  const absl::StatusOr<RecoveryPoint> point = FindRecoveryPoint(ranks);
  EXPECT_TRUE(point.ok()) << point.status();
  return point.value_or(RecoveryPoint());
}

TEST(StepRecoveryTest, BeforeAnyVoteTheFirstStepIsRunAgain) {
  const RecoveryPoint point = PointOf({File(0), File(0)});
  EXPECT_EQ(point.committed, 0);
  EXPECT_FALSE(point.voted);
  EXPECT_EQ(point.attempt, 1);
}

TEST(StepRecoveryTest, AVoteThatOneRankLacksCommitsNothing) {
  const RecoveryPoint point = PointOf({File(5), File(4), File(5)});
  EXPECT_EQ(point.committed, 4);
  EXPECT_TRUE(point.voted);
  EXPECT_EQ(point.attempt, 2);  // of step 5, for which two votes lie there
}

TEST(StepRecoveryTest, TheFirstStepWithAVoteMissingIsRunAgain) {
  const RecoveryPoint point = PointOf({File(1), File(0)});
  EXPECT_EQ(point.committed, 0);
  EXPECT_FALSE(point.voted);
  EXPECT_EQ(point.attempt, 2);
}

TEST(StepRecoveryTest, AllVotesOfOneAttemptCommit) {
  const RecoveryPoint point = PointOf({File(5, 3), File(5, 3)});
  EXPECT_EQ(point.committed, 5);
  EXPECT_TRUE(point.voted);
  EXPECT_EQ(point.attempt, 1);
}

// Rank 0 voted for the second attempt, rank 1 was lost before: its old vote says nothing.
TEST(StepRecoveryTest, AVoteOfAnOlderAttemptDoesNotCount) {
  const RecoveryPoint point = PointOf({File(5, 2), File(5, 1)});
  EXPECT_EQ(point.committed, 4);
  EXPECT_TRUE(point.voted);
  EXPECT_EQ(point.attempt, 3);
}

TEST(StepRecoveryTest, AJobThatWasResumedStartsWithItsCheckpoint) {
  EXPECT_EQ(PointOf({File(0, 1, 40), File(0, 1, 40)}).committed, 40);
  const RecoveryPoint point = PointOf({File(41, 1, 40), File(0, 1, 40)});
  EXPECT_EQ(point.committed, 40);
  EXPECT_FALSE(point.voted);
  EXPECT_EQ(point.attempt, 2);
}

TEST(StepRecoveryTest, FilesOfAnotherStartAreRefused) {
  const absl::Status status = FindRecoveryPoint({{File(0, 1, 40), File(0, 1, 20)}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 starts at step 20, rank 0 at 40"));
}

TEST(StepRecoveryTest, FilesFurtherApartThanAStepAreRefused) {
  const absl::Status status = FindRecoveryPoint({{File(7), File(5)}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 has voted for step 7"));
}

TEST(StepRecoveryTest, VotesOfDifferentOrdersAreRefused) {
  KeptSteps other = File(5);
  other.order_hash[1] = 8;
  EXPECT_THAT(std::string(FindRecoveryPoint({{File(5), other}}).status().message()),
              HasSubstr("ranks 0 and 1 voted for step 5 with other orders"));
}

}  // namespace
}  // namespace tessera
