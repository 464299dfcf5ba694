#include "coordinator/recovery_policy.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::JobSpec Resolved(int min_workers, int max_workers, int local_world_size) {
  v1::JobSpec spec;
  spec.set_max_recoveries(2);
  spec.set_global_batch(12);
  spec.set_micro_batches(1);
  spec.mutable_mesh()->set_min_workers(min_workers);
  spec.mutable_mesh()->set_max_workers(max_workers);
  spec.mutable_mesh()->set_local_world_size(local_world_size);
  return spec;
}

v1::Job InState(v1::JobState state, int recoveries = 0) {
  v1::Job job;
  job.set_state(state);
  job.set_recoveries(recoveries);
  return job;
}

Blame Of(absl::StatusCode code) { return {code, "what happened", 1}; }

bool Recovers(const Blame& blame, const v1::Job& job = InState(v1::RUNNING), bool built = false) {
  return !WhyNotRecoverable(Resolved(2, 2, 0), built, job, blame).has_value();
}

TEST(WhyNotRecoverableTest, LossesAndStuckRanksAreRecoverable) {
  EXPECT_TRUE(Recovers(Of(absl::StatusCode::kUnavailable)));
  EXPECT_TRUE(Recovers(Of(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_TRUE(Recovers(Of(absl::StatusCode::kAborted)));
}

TEST(WhyNotRecoverableTest, ARanksOwnErrorIsNot) {
  for (const auto code :
       {absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kInternal, absl::StatusCode::kFailedPrecondition,
        absl::StatusCode::kUnknown, absl::StatusCode::kCancelled, absl::StatusCode::kNotFound}) {
    EXPECT_FALSE(Recovers(Of(code))) << code;
  }
  Blame early = Of(absl::StatusCode::kUnavailable);
  early.finished_early = true;
  EXPECT_FALSE(Recovers(early));
}

TEST(WhyNotRecoverableTest, AHostThatWasToldToStopIsLost) {
  Blame host{absl::StatusCode::kCancelled, "its agent was told to stop", std::nullopt};
  host.of_host = true;
  EXPECT_TRUE(Recovers(host));
  host.code = absl::StatusCode::kResourceExhausted;
  EXPECT_FALSE(Recovers(host));
}

TEST(WhyNotRecoverableTest, OnlyAJobThatHasRunAndWhoseModelIsGiven) {
  const Blame loss = Of(absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Recovers(loss, InState(v1::FORMING)));
  EXPECT_FALSE(Recovers(loss, InState(v1::DRAFT)));
  EXPECT_TRUE(Recovers(loss, InState(v1::RECOVERING, 1)));
  EXPECT_FALSE(Recovers(loss, InState(v1::RUNNING), /*built=*/true));
}

TEST(WhyNotRecoverableTest, AfterMaxRecoveriesTheJobFailsAndSaysSo) {
  const auto why = WhyNotRecoverable(Resolved(2, 2, 0), false, InState(v1::RUNNING, 2),
                                     Of(absl::StatusCode::kUnavailable));
  ASSERT_TRUE(why.has_value());
  EXPECT_EQ(why->reason,
            "what happened; the job has recovered 2 times, as often as max_recoveries allows");
  EXPECT_EQ(why->rank, 1);
  v1::JobSpec never = Resolved(2, 2, 0);
  never.set_max_recoveries(0);
  const auto as_before =
      WhyNotRecoverable(never, false, InState(v1::RUNNING), Of(absl::StatusCode::kUnavailable));
  ASSERT_TRUE(as_before.has_value());
  EXPECT_EQ(as_before->reason, "what happened");
}

TEST(BackOffTest, TheFirstRecoveryIsAtOnceAndThenItWaitsWhileNoStepIsCommitted) {
  BackOff back_off;
  back_off.Began(0);
  const double seconds[] = {0, 0.5, 1, 2, 4, 8, 8, 8};
  for (const double wait : seconds) {
    EXPECT_EQ(back_off.Lost(7), absl::Seconds(wait));
    back_off.Began(7);
  }
  EXPECT_EQ(back_off.Lost(8), absl::ZeroDuration());
}

TEST(BackOffTest, StepsThatNobodyReportedCountOnceARankHasTold) {
  BackOff back_off;
  back_off.Began(0);
  EXPECT_EQ(back_off.Lost(5), absl::ZeroDuration());
  back_off.Began(6);
  // Step 7 was committed and not reported.
  EXPECT_EQ(back_off.Lost(6), absl::Milliseconds(500));
  back_off.Began(7);
  EXPECT_EQ(back_off.Lost(7), absl::Milliseconds(500));
  EXPECT_EQ(back_off.Lost(7), absl::Seconds(1));
}

TEST(BackOffTest, StepsThatAreRepeatedFromACheckpointCount) {
  BackOff back_off;
  back_off.Began(0);
  EXPECT_EQ(back_off.Lost(50), absl::ZeroDuration());
  back_off.Began(40);
  EXPECT_EQ(back_off.Lost(45), absl::ZeroDuration());
  back_off.Began(40);
  EXPECT_EQ(back_off.Lost(40), absl::Milliseconds(500));
}

using Hosts = std::vector<MemberId>;

TEST(ChooseHostsTest, TheSameHostsWhereAllAreThere) {
  const HostChoice one = ChooseHosts(Resolved(2, 4, 0), 3, {{7, 4}}, {{8, 9}}, Patience::kWait);
  EXPECT_EQ(one.hosts, Hosts({7}));
  EXPECT_EQ(one.world_size, 3);
  EXPECT_TRUE(one.same_hosts);
  const HostChoice two =
      ChooseHosts(Resolved(2, 6, 2), 4, {{7, 2}, {8, 2}}, {{9, 2}}, Patience::kWait);
  EXPECT_EQ(two.hosts, Hosts({7, 8}));
  EXPECT_EQ(two.world_size, 4);
  EXPECT_TRUE(two.same_hosts);
}

TEST(ChooseHostsTest, ASpareThatIsLargeEnoughTakesTheIndexOfALostHost) {
  const HostChoice choice = ChooseHosts(Resolved(2, 6, 2), 6, {{0, 0}, {8, 2}, {9, 2}},
                                        {{20, 1}, {21, 3}}, Patience::kWait);
  EXPECT_EQ(choice.hosts, Hosts({21, 8, 9}));
  EXPECT_EQ(choice.world_size, 6);
  EXPECT_FALSE(choice.same_hosts);
  EXPECT_EQ(ChooseHosts(Resolved(2, 4, 0), 3, {{0, 0}}, {{5, 2}, {6, 3}}, Patience::kWait).hosts,
            Hosts({6}));
}

TEST(ChooseHostsTest, WaitsWhileThereIsNoneAndThenTakesTheLargestThatIsPermitted) {
  const std::vector<HostOffer> slots = {{7, 2}, {0, 0}, {9, 2}};
  EXPECT_TRUE(ChooseHosts(Resolved(2, 6, 2), 6, slots, {{20, 1}}, Patience::kWait).hosts.empty());
  const HostChoice choice = ChooseHosts(Resolved(2, 6, 2), 6, slots, {{20, 1}}, Patience::kBest);
  EXPECT_EQ(choice.hosts, Hosts({7, 9}));
  EXPECT_EQ(choice.world_size, 4);
  EXPECT_FALSE(choice.same_hosts);
}

TEST(ChooseHostsTest, NoneBelowMinWorkers) {
  EXPECT_TRUE(ChooseHosts(Resolved(6, 6, 2), 6, {{7, 2}, {0, 0}, {9, 2}}, {}, Patience::kBest)
                  .hosts.empty());
  EXPECT_TRUE(ChooseHosts(Resolved(2, 4, 0), 4, {{0, 0}}, {}, Patience::kBest).hosts.empty());
}

TEST(ChooseHostsTest, SizesThatDoNotDivideTheBatchAreLeftOut) {
  // 12 sequences: 10 workers cannot share them, 6 can.
  const std::vector<HostOffer> slots = {{1, 2}, {2, 2}, {0, 0}, {4, 2}, {5, 2}, {6, 2}};
  const HostChoice choice = ChooseHosts(Resolved(2, 12, 2), 12, slots, {}, Patience::kBest);
  EXPECT_EQ(choice.world_size, 6);
  EXPECT_EQ(choice.hosts, Hosts({1, 2, 4}));
}

TEST(ChooseHostsTest, AJobOnOneHostTakesTheSpareThatAllowsMost) {
  const HostChoice choice =
      ChooseHosts(Resolved(1, 4, 0), 4, {{0, 0}}, {{20, 1}, {21, 3}, {22, 2}}, Patience::kBest);
  EXPECT_EQ(choice.hosts, Hosts({21}));
  EXPECT_EQ(choice.world_size, 3);
}

TEST(ChooseHostsTest, AJobThatGrowsTakesSparesBehindItsHosts) {
  const HostChoice choice =
      ChooseHosts(Resolved(2, 6, 2), 2, {{7, 2}}, {{20, 2}, {21, 2}, {22, 2}}, Patience::kBest);
  EXPECT_EQ(choice.hosts, Hosts({7, 20, 21}));
  EXPECT_EQ(choice.world_size, 6);
  EXPECT_FALSE(choice.same_hosts);
}

TEST(CanGrowTest, WhereALargerWorldSizeIsPermittedAndNotAllHostsForItAreThere) {
  EXPECT_TRUE(CanGrow(Resolved(2, 4, 2), 1, 2));
  EXPECT_FALSE(CanGrow(Resolved(2, 4, 2), 2, 2));  // the second stands by already
  EXPECT_FALSE(CanGrow(Resolved(4, 4, 2), 2, 4));
  EXPECT_FALSE(CanGrow(Resolved(1, 4, 0), 1, 2));  // all its ranks are on one host
  v1::JobSpec odd = Resolved(2, 4, 2);
  odd.set_global_batch(6);
  EXPECT_FALSE(CanGrow(odd, 1, 2));  // 4 workers cannot share 6 sequences
}

}  // namespace
}  // namespace tessera
