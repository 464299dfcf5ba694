// How jobs find hosts, run, and what a loss means for them.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

using CoordinatorMembersTest = CoordinatorFixture;

TEST_F(CoordinatorMembersTest, AJobRunsFromItsFirstHostToItsLastRank) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const Member agent = JoinHost("node-a", 2, "gpt");
  EXPECT_EQ(agent.sink->welcomes, 1);
  ASSERT_TRUE(agent.sink->form.has_value());
  EXPECT_EQ(agent.sink->form->generation(), 1);
  EXPECT_EQ(agent.sink->form->assignments_size(), 2);
  EXPECT_EQ(agent.sink->form->spec().seed(), 1);  // a default, filled in

  const Member rank_0 = JoinRank("gpt", 1, 0);
  const Member rank_1 = JoinRank("gpt", 1, 1);
  Ready(rank_0, 4096);
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  EXPECT_EQ(rank_0.sink->starts, 0);
  Ready(rank_1, 8192);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").generation(), 1);
  EXPECT_EQ(Get("gpt").world_size(), 2);
  EXPECT_EQ(rank_0.sink->starts, 1);
  EXPECT_EQ(rank_1.sink->starts, 1);

  Leave(rank_0);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(*rank_0.sink->closed, absl::OkStatus());
  Leave(rank_1);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  ASSERT_TRUE(agent.sink->end.has_value());
  EXPECT_EQ(agent.sink->end->state(), v1::SUCCEEDED);
  // What the ended job's members still say changes nothing.
  WorkerExited(agent, 0, 1, 0);
  Leave(agent);
  coordinator_.StreamBroken(agent.id);
  Pass(absl::Seconds(10));
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorMembersTest, FormingJobsTakeHostsInOrderOfAge) {
  const Member small = JoinHost("small", 1, "");
  ASSERT_TRUE(Create(Spec("old", 2, 4)).ok());
  ASSERT_TRUE(Create(Spec("young", 1, 1)).ok());
  // "old" does not fit on the host that was there; "young" does.
  EXPECT_FALSE(Get("old").world_size() > 0);
  ASSERT_TRUE(small.sink->form.has_value());
  EXPECT_EQ(small.sink->form->job(), "young");
  ASSERT_TRUE(Create(Spec("youngest", 1, 1)).ok());
  const Member large = JoinHost("large", 3, "");
  ASSERT_TRUE(large.sink->form.has_value());
  EXPECT_EQ(large.sink->form->job(), "old");
  // 3 workers, though max_workers is 4: the plan is made again.
  EXPECT_EQ(large.sink->form->assignments_size(), 3);
  EXPECT_EQ(large.sink->form->layout().world_size(), 3);
  EXPECT_EQ(coordinator_.GetPlan("old")->layout().world_size(), 3);
  EXPECT_EQ(Get("youngest").state(), v1::FORMING);
}

v1::JobSpec Attached(v1::JobSpec spec) {
  spec.set_workload("attached");
  return spec;
}

TEST_F(CoordinatorMembersTest, ThePoolGivesEachJobAHostWithItsKindOfProgram) {
  const Member built_in = JoinHost("node-a", 2, "");
  ASSERT_TRUE(Create(Attached(Spec("own", 2, 2))).ok());
  EXPECT_FALSE(built_in.sink->form.has_value());
  const Member trainer = JoinHost("node-b", 2, "", nullptr, "/opt/trainer");
  ASSERT_TRUE(trainer.sink->form.has_value());
  EXPECT_EQ(trainer.sink->form->job(), "own");
  const Member other = JoinHost("node-c", 2, "", nullptr, "/opt/trainer");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  EXPECT_FALSE(other.sink->form.has_value());
  ASSERT_TRUE(built_in.sink->form.has_value());
  EXPECT_EQ(built_in.sink->form->job(), "gpt");
}

TEST_F(CoordinatorMembersTest, ABoundHostWithTheWrongProgramIsToldWhatWouldBeRight) {
  ASSERT_TRUE(Create(Attached(Spec("own", 2, 2))).ok());
  absl::Status refused;
  JoinHost("node-a", 2, "own", &refused);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(refused), "WRONG_PROGRAM");
  EXPECT_TRUE(absl::StrContains(refused.message(), "--job=own -- PROGRAM")) << refused;
  // The job waits for another.
  EXPECT_EQ(Get("own").state(), v1::FORMING);
  EXPECT_TRUE(JoinHost("node-a", 2, "own", nullptr, "/opt/trainer").sink->form.has_value());

  // One that came before its job.
  const Member early = JoinHost("node-b", 2, "gpt", nullptr, "/opt/trainer");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  ASSERT_TRUE(early.sink->closed.has_value());
  EXPECT_EQ(Reason(*early.sink->closed), "WRONG_PROGRAM");
  EXPECT_TRUE(absl::StrContains(early.sink->closed->message(), "not the program /opt/trainer"))
      << *early.sink->closed;
  EXPECT_TRUE(JoinHost("node-b", 2, "gpt").sink->form.has_value());
}

TEST_F(CoordinatorMembersTest, AProgramThatEndsBeforeItJoinsFailsTheJobByRank) {
  for (const int exit_code : {0, 3}) {
    const std::string name = absl::StrCat("own", exit_code);
    ASSERT_TRUE(Create(Attached(Spec(name, 2, 2))).ok());
    const Member agent = JoinHost("node-a", 2, name, nullptr, "/opt/trainer");
    JoinRank(name, 1, 0);
    WorkerExited(agent, 1, exit_code, 0);
    Pass(absl::Milliseconds(500), {agent});
    EXPECT_EQ(Get(name).state(), v1::FAILED);
    EXPECT_EQ(Get(name).failed_rank(), 1);
    EXPECT_EQ(Get(name).reason(), absl::StrCat("rank 1 on host node-a exited with code ", exit_code,
                                               " before it joined the job"));
  }
}

TEST_F(CoordinatorMembersTest, AHostBoundToAJobIsNotGivenToAnother) {
  const Member bound = JoinHost("node-a", 2, "later");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  EXPECT_FALSE(bound.sink->form.has_value());
  // Agents may come before their job.
  ASSERT_TRUE(Create(Spec("later", 2, 2)).ok());
  ASSERT_TRUE(bound.sink->form.has_value());
  EXPECT_EQ(bound.sink->form->job(), "later");
}

TEST_F(CoordinatorMembersTest, AHostThatIsBoundGoesBeforeThePool) {
  const Member pool = JoinHost("pool", 2, "");
  const Member bound = JoinHost("bound", 2, "gpt");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  EXPECT_TRUE(bound.sink->form.has_value());
  EXPECT_FALSE(pool.sink->form.has_value());
}

TEST_F(CoordinatorMembersTest, AHostServesOneJob) {
  ASSERT_TRUE(Create(Spec("one", 1, 1)).ok());
  ASSERT_TRUE(Create(Spec("two", 1, 1)).ok());
  const Member host = JoinHost("node-a", 4, "");
  EXPECT_EQ(host.sink->form->job(), "one");
  EXPECT_EQ(Get("two").world_size(), 0);
}

TEST_F(CoordinatorMembersTest, ASecondHostOfARunningJobIsRefusedAndTheJobGoesOn) {
  StartGpt(2);
  absl::Status status;
  JoinHost("node-b", 2, "gpt", &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(status), "SECOND_HOST");
  EXPECT_TRUE(absl::StrContains(status.message(), "node-a"));
  EXPECT_TRUE(absl::StrContains(status.message(), "node-b"));
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
}

TEST_F(CoordinatorMembersTest, TwoHostsThatAreTooSmallFailTheJobNamingBoth) {
  ASSERT_TRUE(Create(Spec("gpt", 4, 4)).ok());
  const Member first = JoinHost("node-a", 2, "gpt");
  EXPECT_FALSE(first.sink->form.has_value());
  absl::Status status;
  JoinHost("node-b", 2, "gpt", &status);
  EXPECT_EQ(Reason(status), "SECOND_HOST");
  const v1::Job job = Get("gpt");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason_code(), "FAILED_PRECONDITION");
  EXPECT_TRUE(absl::StrContains(job.reason(), "node-a")) << job.reason();
  EXPECT_TRUE(absl::StrContains(job.reason(), "node-b")) << job.reason();
  ASSERT_TRUE(first.sink->end.has_value());
  EXPECT_EQ(first.sink->end->state(), v1::FAILED);
}

TEST_F(CoordinatorMembersTest, TwoHostsThatCameBeforeTheJobAreTreatedTheSame) {
  const Member small_1 = JoinHost("node-a", 2, "big");
  const Member small_2 = JoinHost("node-b", 2, "big");
  ASSERT_TRUE(Create(Spec("big", 4, 4)).ok());
  EXPECT_EQ(Get("big").state(), v1::FAILED);
  EXPECT_EQ(small_1.sink->end->state(), v1::FAILED);
  EXPECT_EQ(small_2.sink->end->state(), v1::FAILED);

  const Member fits = JoinHost("node-c", 2, "ok");
  const Member second = JoinHost("node-d", 2, "ok");
  ASSERT_TRUE(Create(Spec("ok", 2, 2)).ok());
  EXPECT_TRUE(fits.sink->form.has_value());
  ASSERT_TRUE(second.sink->closed.has_value());
  EXPECT_EQ(Reason(*second.sink->closed), "SECOND_HOST");
  EXPECT_EQ(Get("ok").state(), v1::FORMING);
}

TEST_F(CoordinatorMembersTest, AHostOfAnEndedJobIsToldAtOnce) {
  StartGpt(1);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  const Member late = JoinHost("node-b", 1, "gpt");
  ASSERT_TRUE(late.sink->end.has_value());
  EXPECT_EQ(late.sink->end->state(), v1::CANCELLED);
  EXPECT_EQ(late.sink->end->reason(), "enough");
}

TEST_F(CoordinatorMembersTest, MissingRanksAreNamedWhenTheTimeToFormIsOver) {
  ASSERT_TRUE(Create(Spec("gpt", 4, 4)).ok());
  const Member agent = JoinHost("node-a", 4, "gpt");
  const Member rank_0 = JoinRank("gpt", 1, 0);
  const Member rank_1 = JoinRank("gpt", 1, 1);
  Pass(absl::Seconds(59), {agent, rank_0, rank_1});
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  Pass(absl::Seconds(2), {agent, rank_0, rank_1});
  const v1::Job job = Get("gpt");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason_code(), "DEADLINE_EXCEEDED");
  EXPECT_TRUE(absl::StartsWith(job.reason(), "2 of 4 workers joined; ranks 2-3 are missing"))
      << job.reason();
  EXPECT_TRUE(agent.sink->end.has_value());
  EXPECT_TRUE(rank_1.sink->end.has_value());
}

TEST_F(CoordinatorMembersTest, AJobThatNobodyComesForFailsInTime) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  Pass(absl::Seconds(61));
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "0 of 2 workers joined; ranks 0-1 are missing"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorMembersTest, ARankThatDoesNotGetReadyIsNamed) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const Member agent = JoinHost("node-a", 2, "gpt");
  const std::vector<Member> all = {agent, JoinRank("gpt", 1, 0), JoinRank("gpt", 1, 1)};
  Ready(all[1]);
  Pass(absl::Seconds(61), all);
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "1 of 2 workers are ready; rank 1 is missing"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorMembersTest, JoinsAreChecked) {
  absl::Status status;
  JoinHost("", 2, "", &status);
  EXPECT_EQ(Field(status), "join_host.host_name");
  JoinHost("node-a", 0, "", &status);
  EXPECT_EQ(Field(status), "join_host.local_workers");
  JoinRank("", 1, 0, &status);
  EXPECT_EQ(Field(status), "join_rank.job");
  JoinRank("none", 1, 0, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  StartGpt(1);
  JoinRank("gpt", 1, 0, &status, "other");
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(status), "RANK_TAKEN");
  JoinRank("gpt", 9, 0, &status);
  EXPECT_EQ(Reason(status), "STALE_GENERATION");
  v1::AttendRequest heartbeat;
  heartbeat.mutable_heartbeat();
  Join(heartbeat, &status);
  EXPECT_EQ(Field(status), "message");
}

TEST_F(CoordinatorMembersTest, MessagesOutOfPlaceAreRefused) {
  StartGpt(1);
  v1::AttendRequest message;
  message.mutable_rank_ready();
  EXPECT_EQ(Field(coordinator_.Receive(agent_.id, message)), "rank_ready");
  message.mutable_worker_exited();
  EXPECT_EQ(Field(coordinator_.Receive(ranks_[0].id, message)), "worker_exited");
  message.mutable_worker_exited()->set_rank(4);
  EXPECT_EQ(Field(coordinator_.Receive(agent_.id, message)), "worker_exited.rank");
  message.mutable_join_host();
  EXPECT_EQ(Field(coordinator_.Receive(agent_.id, message)), "message");
  EXPECT_EQ(Field(coordinator_.Receive(agent_.id, v1::AttendRequest())), "message");
}

TEST_F(CoordinatorMembersTest, KilledRankIsBlamedWhateverComesFirst) {
  std::vector<int> order = {0, 1, 2};
  int job = 0;
  do {
    const std::string name = absl::StrCat("job-", job++);
    ASSERT_TRUE(Create(Spec(name, 2, 2)).ok());
    const Member agent = JoinHost("node-a", 2, name);
    const Member rank_0 = JoinRank(name, 1, 0);
    const Member rank_1 = JoinRank(name, 1, 1);
    Ready(rank_0);
    Ready(rank_1);
    for (const int event : order) {
      if (event == 0) coordinator_.StreamBroken(rank_1.id);
      if (event == 1) Leave(rank_0, absl::StatusCode::kUnavailable, "rank 1 is gone", 1);
      if (event == 2) WorkerExited(agent, 1, 0, 9);
      EXPECT_EQ(Get(name).state(), v1::RUNNING);  // evidence is still coming in
    }
    Pass(absl::Milliseconds(400), {agent});
    EXPECT_EQ(Get(name).state(), v1::FAILED);
    EXPECT_TRUE(Get(name).has_failed_rank());
    EXPECT_EQ(Get(name).failed_rank(), 1);
    EXPECT_EQ(Get(name).reason(), "rank 1 on host node-a was killed by signal 9 (SIGKILL)");
    EXPECT_EQ(agent.sink->end->state(), v1::FAILED);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(CoordinatorMembersTest, KilledAgentIsBlamedByNameWhateverComesFirst) {
  std::vector<int> order = {0, 1, 2};
  int job = 0;
  do {
    const std::string name = absl::StrCat("job-", job++);
    ASSERT_TRUE(Create(Spec(name, 2, 2)).ok());
    const Member agent = JoinHost("node-a", 2, name);
    const Member rank_0 = JoinRank(name, 1, 0);
    const Member rank_1 = JoinRank(name, 1, 1);
    Ready(rank_0);
    Ready(rank_1);
    for (const int event : order) {
      if (event == 0) coordinator_.StreamBroken(agent.id);
      if (event == 1) Leave(rank_0, absl::StatusCode::kUnavailable, "the agent is gone");
      if (event == 2) coordinator_.StreamBroken(rank_1.id);
    }
    EXPECT_EQ(Get(name).state(), v1::FAILED);
    EXPECT_FALSE(Get(name).has_failed_rank());
    EXPECT_EQ(Get(name).reason(), "host node-a is lost: its agent (pid 7) is gone");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(CoordinatorMembersTest, ARankThatIsSilentLosesItsLease) {
  StartGpt(2);
  Pass(absl::Seconds(5), {agent_, ranks_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Pass(absl::Milliseconds(600), {agent_, ranks_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").failed_rank(), 1);
  EXPECT_EQ(Get("gpt").reason(), "rank 1 on host node-a is lost: not heard of for 5s");
  EXPECT_EQ(ranks_[0].sink->end->state(), v1::FAILED);
  EXPECT_EQ(ranks_[1].sink->closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoordinatorMembersTest, ASilentHostIsBlamedAndNotItsSilentRanks) {
  StartGpt(2);
  // The agent was heard of last, so the leases of its ranks end before its own.
  Pass(absl::Seconds(1), {agent_});
  Pass(absl::Seconds(6));
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_FALSE(Get("gpt").has_failed_rank());
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "host node-a is lost")) << Get("gpt").reason();
}

TEST_F(CoordinatorMembersTest, TheCoordinatorsOwnPauseEndsNothing) {
  StartGpt(2);
  ASSERT_TRUE(Create(Spec("waits", 2, 2)).ok());
  clock_.Advance(absl::Hours(2));
  Pass(absl::Seconds(1), {agent_, ranks_[0], ranks_[1]});
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("waits").state(), v1::FORMING);
}

TEST_F(CoordinatorMembersTest, ALossWhileFormingFailsTheJob) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const Member agent = JoinHost("node-a", 2, "gpt");
  const Member rank_0 = JoinRank("gpt", 1, 0);
  WorkerExited(agent, 1, 127, 0);
  Pass(absl::Milliseconds(400), {agent, rank_0});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").failed_rank(), 1);
  EXPECT_EQ(Get("gpt").reason(),
            "rank 1 on host node-a exited with code 127 before it joined the job");
}

TEST_F(CoordinatorMembersTest, AnAgentThatCannotFormSaysWhy) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const Member agent = JoinHost("node-a", 2, "gpt");
  Leave(agent, absl::StatusCode::kResourceExhausted, "needs 9 GiB, has 4");
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(Get("gpt").reason(), "host node-a: needs 9 GiB, has 4");
}

TEST_F(CoordinatorMembersTest, ARankThatLeavesOrExitsBeforeTheOthersStartIsLost) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const Member agent = JoinHost("node-a", 2, "gpt");
  Leave(JoinRank("gpt", 1, 0));
  Pass(absl::Milliseconds(400), {agent});
  EXPECT_EQ(Get("gpt").reason(), "rank 0 on host node-a left before its work was done");
}

TEST_F(CoordinatorMembersTest, ACleanExitReportedBeforeTheRanksLeaveIsNoLoss) {
  StartGpt(1);
  WorkerExited(agent_, 0, 0, 0);
  Leave(ranks_[0]);
  Pass(absl::Seconds(1), {agent_});
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorMembersTest, AWaitingHostThatGoesTakesNoJobWithIt) {
  ASSERT_TRUE(Create(Spec("gpt", 4, 4)).ok());
  const Member small = JoinHost("node-a", 2, "gpt");
  coordinator_.StreamBroken(small.id);
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  const Member large = JoinHost("node-b", 4, "gpt");
  EXPECT_TRUE(large.sink->form.has_value());
}

}  // namespace
}  // namespace tessera
