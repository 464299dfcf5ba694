#include "coordinator/job.h"

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kCreated = absl::FromUnixSeconds(100);
const absl::Time kEnded = absl::FromUnixSeconds(160);

JobLifecycle RunningJob() {
  JobLifecycle job("gpt", 600, kCreated);
  EXPECT_TRUE(job.Seal().ok());
  EXPECT_TRUE(job.Form().ok());
  EXPECT_TRUE(job.Run().ok());
  return job;
}

TEST(JobLifecycleTest, GoesFromDraftToSucceeded) {
  JobLifecycle job("gpt", 600, kCreated);
  EXPECT_EQ(job.state(), v1::DRAFT);
  ASSERT_TRUE(job.Seal().ok());
  EXPECT_EQ(job.state(), v1::SEALED);
  ASSERT_TRUE(job.Form().ok());
  EXPECT_EQ(job.state(), v1::FORMING);
  ASSERT_TRUE(job.Run().ok());
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_FALSE(job.ended());
  ASSERT_TRUE(job.Succeed(kEnded).ok());
  EXPECT_TRUE(job.ended());
  EXPECT_EQ(job.proto().name(), "gpt");
  EXPECT_EQ(job.proto().steps(), 600);
  EXPECT_EQ(job.proto().create_time().seconds(), 100);
  EXPECT_EQ(job.proto().end_time().seconds(), 160);
  EXPECT_EQ(job.proto().reason(), "");
  EXPECT_EQ(job.proto().reason_code(), "");
  EXPECT_FALSE(job.proto().has_failed_rank());
}

TEST(JobLifecycleTest, FailureNamesReasonCodeAndRank) {
  JobLifecycle job = RunningJob();
  ASSERT_TRUE(job.Fail({absl::StatusCode::kUnavailable, "rank 0 is gone", 0}, kEnded).ok());
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.proto().reason(), "rank 0 is gone");
  EXPECT_EQ(job.proto().reason_code(), "UNAVAILABLE");
  // Rank 0 is a rank, not "none".
  EXPECT_TRUE(job.proto().has_failed_rank());
  EXPECT_EQ(job.proto().failed_rank(), 0);
}

TEST(JobLifecycleTest, FailureWithoutRankLeavesFailedRankAbsent) {
  JobLifecycle job = RunningJob();
  ASSERT_TRUE(job.Fail({absl::StatusCode::kDeadlineExceeded, "late", {}}, kEnded).ok());
  EXPECT_FALSE(job.proto().has_failed_rank());
  EXPECT_EQ(job.proto().reason_code(), "DEADLINE_EXCEEDED");
}

TEST(JobLifecycleTest, EveryLiveStateCanFailAndBeCancelled) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const bool fail : {true, false}) {
      JobLifecycle job("gpt", 1, kCreated);
      if (stage > 0) {
        ASSERT_TRUE(job.Seal().ok());
      }
      if (stage > 1) {
        ASSERT_TRUE(job.Form().ok());
      }
      if (stage > 2) {
        ASSERT_TRUE(job.Run().ok());
      }
      if (fail) {
        EXPECT_TRUE(job.Fail({absl::StatusCode::kInternal, "x", {}}, kEnded).ok());
        EXPECT_EQ(job.state(), v1::FAILED);
      } else {
        EXPECT_TRUE(job.Cancel(absl::StatusCode::kCancelled, "x", kEnded).ok());
        EXPECT_EQ(job.state(), v1::CANCELLED);
        EXPECT_EQ(job.proto().reason_code(), "CANCELLED");
      }
    }
  }
}

TEST(JobLifecycleTest, RefusesEveryOtherTransitionAndChangesNothing) {
  JobLifecycle draft("gpt", 1, kCreated);
  EXPECT_EQ(draft.Form().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(draft.Run().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(draft.Succeed(kEnded).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(draft.state(), v1::DRAFT);

  JobLifecycle running = RunningJob();
  EXPECT_EQ(running.Seal().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(running.Form().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(running.Run().message(), "job gpt is RUNNING and cannot become RUNNING");
  EXPECT_EQ(running.state(), v1::RUNNING);
}

TEST(JobLifecycleTest, AnEndIsFinal) {
  JobLifecycle job = RunningJob();
  ASSERT_TRUE(job.Cancel(absl::StatusCode::kCancelled, "enough", kEnded).ok());
  EXPECT_FALSE(job.Fail({absl::StatusCode::kInternal, "late", 3}, kEnded).ok());
  EXPECT_FALSE(job.Succeed(kEnded).ok());
  EXPECT_FALSE(job.Cancel(absl::StatusCode::kCancelled, "again", kEnded).ok());
  job.SetReason("again");
  EXPECT_EQ(job.state(), v1::CANCELLED);
  EXPECT_EQ(job.proto().reason(), "enough");
  EXPECT_FALSE(job.proto().has_failed_rank());
}

TEST(JobLifecycleTest, ADrainedJobIsCancelledAndSaysSo) {
  JobLifecycle job = RunningJob();
  ASSERT_TRUE(job.Drain().ok());
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_TRUE(job.proto().draining());
  EXPECT_FALSE(job.drained());
  ASSERT_TRUE(job.EndDrained("drained after step 3 of 9", kEnded).ok());
  EXPECT_EQ(job.state(), v1::CANCELLED);
  EXPECT_EQ(job.proto().reason_code(), "DRAINED");
  EXPECT_EQ(job.proto().reason(), "drained after step 3 of 9");
  EXPECT_TRUE(job.drained());
}

TEST(JobLifecycleTest, OnlyARunningJobDrains) {
  JobLifecycle job("gpt", 1, kCreated);
  EXPECT_EQ(job.Drain().message(), "job gpt is DRAFT, which cannot be drained");
  EXPECT_FALSE(job.proto().draining());
  job = RunningJob();
  ASSERT_TRUE(job.Cancel(absl::StatusCode::kCancelled, "enough", kEnded).ok());
  EXPECT_EQ(job.Drain().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(job.EndDrained("late", kEnded).ok());
  EXPECT_FALSE(job.drained());
  EXPECT_EQ(job.proto().reason(), "enough");
}

TEST(JobLifecycleTest, StepsAndGenerationsOnlyGrow) {
  JobLifecycle job = RunningJob();
  job.SetStep(7);
  job.SetStep(5);
  EXPECT_EQ(job.proto().step(), 7);
  job.SetGeneration(2, 4);
  EXPECT_EQ(job.proto().generation(), 2);
  EXPECT_EQ(job.proto().world_size(), 4);
}

TEST(JobLifecycleTest, AReasonGoesWithItsState) {
  JobLifecycle job("gpt", 1, kCreated);
  ASSERT_TRUE(job.Seal().ok());
  ASSERT_TRUE(job.Form().ok());
  job.SetReason("waits for workers");
  EXPECT_EQ(job.proto().reason(), "waits for workers");
  ASSERT_TRUE(job.Run().ok());
  EXPECT_EQ(job.proto().reason(), "");
}

TEST(JobLifecycleTest, RecoversAndRunsAgain) {
  JobLifecycle job = RunningJob();
  job.SetStep(57);
  ASSERT_TRUE(job.Recover("rank 1 is gone", /*lost=*/true).ok());
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.proto().reason(), "rank 1 is gone");
  EXPECT_EQ(job.proto().recoveries(), 1);
  EXPECT_FALSE(job.ended());
  // Lost again before it runs; and stopped to grow, which is no loss.
  ASSERT_TRUE(job.Recover("rank 0 is gone", /*lost=*/true).ok());
  ASSERT_TRUE(job.Recover("grows", /*lost=*/false).ok());
  EXPECT_EQ(job.proto().recoveries(), 2);
  EXPECT_FALSE(job.Succeed(kEnded).ok());
  ASSERT_TRUE(job.Run().ok());
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.proto().reason(), "");
  job.GoBackTo(40);
  EXPECT_EQ(job.proto().step(), 40);
  job.SetCheckpointStep(40);
  job.SetCheckpointStep(20);
  EXPECT_EQ(job.proto().checkpoint_step(), 40);
  ASSERT_TRUE(job.Recover("rank 0 is gone", /*lost=*/true).ok());
  ASSERT_TRUE(job.Fail({absl::StatusCode::kUnavailable, "no host came", {}}, kEnded).ok());
  EXPECT_FALSE(job.Recover("too late", /*lost=*/true).ok());
}

TEST(JobLifecycleTest, OnlyAJobThatRunsRecovers) {
  JobLifecycle job("gpt", 1, kCreated);
  EXPECT_FALSE(job.Recover("x", /*lost=*/true).ok());
  ASSERT_TRUE(job.Seal().ok());
  ASSERT_TRUE(job.Form().ok());
  EXPECT_FALSE(job.Recover("x", /*lost=*/true).ok());
  EXPECT_EQ(job.proto().recoveries(), 0);
  EXPECT_EQ(job.state(), v1::FORMING);
}

TEST(JobLifecycleTest, ADrainWhileItRecoversKeepsTheReason) {
  JobLifecycle job = RunningJob();
  ASSERT_TRUE(job.Recover("rank 1 is gone", /*lost=*/true).ok());
  ASSERT_TRUE(job.Drain().ok());
  EXPECT_TRUE(job.proto().draining());
  EXPECT_EQ(job.proto().reason(), "rank 1 is gone");
}

}  // namespace
}  // namespace tessera
