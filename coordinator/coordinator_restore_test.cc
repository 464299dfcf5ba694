// A coordinator that is started again over what an earlier one has kept.
#include <memory>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"
#include "coordinator/fake_state_store.h"

namespace tessera {
namespace {

class CoordinatorRestoreTest : public CoordinatorFixture {
 protected:
  CoordinatorRestoreTest() { Restart(); }

  // The old process is gone without a word; the new one takes up what it has kept.
  void Restart() {
    std::destroy_at(&coordinator_);
    std::construct_at(&coordinator_, Coordinator::Options{.clock = &clock_, .store = &store_});
    const absl::Status restored = coordinator_.Restore();
    EXPECT_TRUE(restored.ok()) << restored;
  }

  Member RejoinHost(const std::string& host, int64_t generation, absl::Status* status = nullptr) {
    v1::AttendRequest request;
    v1::JoinHost* join = request.mutable_join_host();
    join->set_host_name(host);
    join->set_local_workers(2);
    join->set_job("gpt");
    join->set_incarnation(host);
    if (generation > 0) join->set_serving_job("gpt");
    join->set_generation(generation);
    return Join(request, status);
  }
  Member RejoinRank(int rank, bool ready = true, absl::Status* status = nullptr,
                    const std::string& incarnation = "", int64_t generation = 1) {
    v1::AttendRequest request;
    v1::JoinRank* join = request.mutable_join_rank();
    join->set_job("gpt");
    join->set_generation(generation);
    join->set_rank(rank);
    join->set_incarnation(incarnation.empty() ? absl::StrCat("i", rank) : incarnation);
    join->set_pid(100 + rank);
    join->set_rejoin(true);
    join->set_ready(ready);
    return Join(request, status);
  }
  void RejoinAll() {
    agent_ = RejoinHost("node-a", 1);
    ranks_ = {RejoinRank(0), RejoinRank(1)};
  }

  absl::Status Report(int64_t step, int rank = 0) {
    v1::ReportStatsRequest report;
    report.set_job("gpt");
    report.set_generation(1);
    report.set_rank(rank);
    report.set_incarnation(absl::StrCat("i", rank));
    report.set_step(step);
    if (rank == 0) report.add_progress()->set_step(step);
    return coordinator_.ReportStats(report);
  }

  std::vector<std::string> WorkerStates() {
    v1::ListWorkersRequest request;
    request.set_job("gpt");
    std::vector<std::string> states;
    const v1::ListWorkersResponse response = *coordinator_.ListWorkers(request);
    for (const v1::Worker& worker : response.workers()) states.push_back(worker.state());
    return states;
  }

  std::string LastToken() {
    const auto events = *coordinator_.WatchJob("gpt");
    return events->Read(0, 10000).events.back().resume_token();
  }

  FakeStateStore store_;
};

using Strings = std::vector<std::string>;

TEST_F(CoordinatorRestoreTest, ARunningJobGoesOnInItsGenerationWithItsMembers) {
  StartGpt(2);
  ASSERT_TRUE(Report(3).ok());
  Pass(absl::Seconds(1), {agent_, ranks_[0], ranks_[1]});
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").generation(), 1);
  EXPECT_EQ(Get("gpt").step(), 3);
  EXPECT_EQ(WorkerStates(), (Strings{"AWAY", "AWAY"}));
  RejoinAll();
  EXPECT_EQ(WorkerStates(), (Strings{"READY", "READY"}));
  for (const Member& rank : ranks_) {
    EXPECT_EQ(rank.sink->welcomes, 1);
    EXPECT_EQ(rank.sink->starts, 1);
    EXPECT_EQ(rank.sink->drains, 0);
  }
  EXPECT_FALSE(agent_.sink->form.has_value());
  // Nobody is missed.
  Pass(absl::Seconds(20), {agent_, ranks_[0], ranks_[1]});
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_EQ(agent_.sink->end->state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRestoreTest, ReportsAreTakenBeforeTheRankHasComeBack) {
  StartGpt(2);
  Restart();
  EXPECT_TRUE(Report(4).ok());
  EXPECT_EQ(Get("gpt").step(), 4);
}

TEST_F(CoordinatorRestoreTest, AHostThatDoesNotComeBackIsLostByName) {
  StartGpt(2);
  Restart();
  Pass(absl::Seconds(4));
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Pass(absl::Seconds(2));
  EXPECT_NE(Get("gpt").state(), v1::RUNNING);
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(), "node-a")) << Get("gpt").reason();
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(),
                                "did not come back within 5s after the coordinator was started"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorRestoreTest, ARankThatDoesNotComeBackIsLostByNumber) {
  StartGpt(2);
  Restart();
  agent_ = RejoinHost("node-a", 1);
  const Member rank = RejoinRank(0);
  Pass(absl::Seconds(6), {agent_, rank});
  EXPECT_NE(Get("gpt").state(), v1::RUNNING);
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(), "rank 1")) << Get("gpt").reason();
}

TEST_F(CoordinatorRestoreTest, AnotherProcessDoesNotGetTheRank) {
  StartGpt(2);
  Restart();
  absl::Status status;
  RejoinRank(0, true, &status, "somebody else");
  EXPECT_EQ(Reason(status), "RANK_TAKEN") << status;
  JoinRank("gpt", 1, 0, &status);
  EXPECT_EQ(Reason(status), "RANK_TAKEN") << status;
  RejoinRank(0, true, &status);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CoordinatorRestoreTest, ASecondStreamOfTheSameProcessTakesTheFirstOnesPlace) {
  StartGpt(2);
  const Member rank = RejoinRank(0);
  EXPECT_EQ(ranks_[0].sink->closed->code(), absl::StatusCode::kUnavailable);
  const Member agent = RejoinHost("node-a", 1);
  EXPECT_EQ(agent_.sink->closed->code(), absl::StatusCode::kUnavailable);
  coordinator_.StreamBroken(ranks_[0].id);
  coordinator_.StreamBroken(agent_.id);
  Pass(absl::Seconds(10), {agent, rank, ranks_[1]});
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
}

TEST_F(CoordinatorRestoreTest, WhoWasDoneNeedNotComeBack) {
  StartGpt(2);
  Leave(ranks_[0]);
  Restart();
  agent_ = RejoinHost("node-a", 1);
  WorkerExited(agent_, 0, 0, 0);
  const Member rank = RejoinRank(1);
  Pass(absl::Seconds(10), {agent_, rank});
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRestoreTest, ALeaveThatWasNotAnsweredIsTakenAgain) {
  StartGpt(2);
  Leave(ranks_[0]);
  Restart();
  RejoinAll();
  Leave(ranks_[0]);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Leave(ranks_[1]);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRestoreTest, MembersOfAJobThatHasEndedAreToldSo) {
  StartGpt(2);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  RejoinAll();
  for (const Member& member : {agent_, ranks_[0], ranks_[1]}) {
    ASSERT_TRUE(member.sink->end.has_value());
    EXPECT_EQ(member.sink->end->state(), v1::CANCELLED);
    EXPECT_EQ(member.sink->end->reason(), "enough");
    EXPECT_TRUE(member.sink->closed.has_value());
  }
}

TEST_F(CoordinatorRestoreTest, MembersOfAJobThatNobodyKnowsAreRefused) {
  absl::Status status;
  RejoinHost("node-a", 1, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  RejoinRank(0, true, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
}

TEST_F(CoordinatorRestoreTest, AJobThatWaitsForHostsGoesOnWaiting) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  agent_ = JoinHost("node-a", 2, "gpt");
  ASSERT_TRUE(agent_.sink->form.has_value());
  EXPECT_EQ(agent_.sink->form->generation(), 1);
}

TEST_F(CoordinatorRestoreTest, AHostThatMayNotHaveHeardIsToldAgainWhatToForm) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  agent_ = JoinHost("node-a", 2, "gpt");
  Restart();
  agent_ = RejoinHost("node-a", 0);
  ASSERT_TRUE(agent_.sink->form.has_value());
  EXPECT_EQ(agent_.sink->form->generation(), 1);
  EXPECT_EQ(agent_.sink->form->assignments_size(), 2);
  for (int rank = 0; rank < 2; ++rank) ranks_.push_back(JoinRank("gpt", 1, rank));
  for (const Member& rank : ranks_) Ready(rank);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
}

TEST_F(CoordinatorRestoreTest, RanksThatWereReadyStartTheJob) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  agent_ = JoinHost("node-a", 2, "gpt");
  ranks_ = {JoinRank("gpt", 1, 0), JoinRank("gpt", 1, 1)};
  Ready(ranks_[0]);
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  agent_ = RejoinHost("node-a", 1);
  EXPECT_FALSE(agent_.sink->form.has_value());
  ranks_ = {RejoinRank(0, /*ready=*/true), RejoinRank(1, /*ready=*/false)};
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  Ready(ranks_[1]);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(ranks_[0].sink->starts, 1);
}

TEST_F(CoordinatorRestoreTest, GenerationNumbersAreNotUsedAgain) {
  StartGpt(2);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  Restart();
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  Restart();
  EXPECT_EQ(JoinHost("node-b", 2, "gpt").sink->form->generation(), 2);
}

// A full disk kept the coordinator from keeping generation 5.
TEST_F(CoordinatorRestoreTest, AGenerationThatWasNotKeptIsNotBegunTwice) {
  StartGpt(2);
  Restart();
  const Member agent = RejoinHost("node-a", 5);
  ASSERT_TRUE(agent.sink->end.has_value());
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  EXPECT_EQ(JoinHost("node-b", 2, "gpt").sink->form->generation(), 6);
}

TEST_F(CoordinatorRestoreTest, ADrainingJobStillDrains) {
  StartGpt(2);
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  Restart();
  EXPECT_TRUE(Get("gpt").draining());
  RejoinAll();
  EXPECT_EQ(ranks_[0].sink->drains, 1);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").reason_code(), "DRAINED");
}

TEST_F(CoordinatorRestoreTest, WatchersGoOnWhereTheyWere) {
  StartGpt(2);
  ASSERT_TRUE(Report(2).ok());
  const std::string token = LastToken();
  Restart();
  ASSERT_TRUE(Report(2).ok());  // again: its answer was lost
  ASSERT_TRUE(Report(4).ok());
  const auto events = *coordinator_.WatchJob("gpt");
  const auto cursor = events->CursorOf(token);
  ASSERT_TRUE(cursor.ok()) << cursor.status();
  const EventLog::Batch batch = events->Read(*cursor, 100);
  ASSERT_EQ(batch.events.size(), 2u);
  EXPECT_EQ(batch.events[0].incident().kind(), v1::Incident::COORDINATOR_RESTARTED);
  EXPECT_EQ(batch.events[1].progress().step(), 4);
  EXPECT_EQ(batch.events[0].missed(), 0);
  // And who comes new sees all of it.
  EXPECT_EQ(events->Read(0, 1).events[0].job().state(), v1::FORMING);
}

TEST_F(CoordinatorRestoreTest, AWatchersTokenOutlivesEventsThatCouldNotBeKept) {
  StartGpt(2);
  store_.Fail(absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(Report(2).ok());
  const std::string token = LastToken();
  store_.Fail(absl::OkStatus());
  Restart();
  const auto events = *coordinator_.WatchJob("gpt");
  ASSERT_TRUE(events->CursorOf(token).ok());
  ASSERT_TRUE(Report(4).ok());
}

TEST_F(CoordinatorRestoreTest, ARequestThatIsSentAgainActsOnceAlsoAfterARestart) {
  const v1::Job created = *Create(Spec("gpt", 2, 2), "create-1");
  Restart();
  clock_.Advance(absl::Seconds(7));
  EXPECT_EQ(Create(Spec("gpt", 2, 2), "create-1")->create_time().seconds(),
            created.create_time().seconds());

  ASSERT_EQ(coordinator_.CancelJob("gpt", "first", "cancel-1")->reason(), "first");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2), "create-2").ok());
  Restart();
  EXPECT_EQ(coordinator_.CancelJob("gpt", "second", "cancel-1")->reason(), "first");
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);

  ASSERT_EQ(coordinator_.DrainJob("gpt", "drain-1")->reason_code(), "DRAINED");
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  Restart();
  EXPECT_EQ(coordinator_.DrainJob("gpt", "drain-1")->reason_code(), "DRAINED");
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  EXPECT_EQ(Field(coordinator_.CancelJob("gpt", "", "drain-1").status()), "request_id");
  EXPECT_EQ(Field(coordinator_.DrainJob("other", "drain-1").status()), "request_id");
}

TEST_F(CoordinatorRestoreTest, AFullDiskRefusesNewJobsAndLeavesTheOthersAlone) {
  StartGpt(2);
  store_.Fail(absl::ResourceExhaustedError("/state/coordinator.sqlite: the disk is full"));
  const absl::Status refused = Create(Spec("next", 2, 2)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "job next is not created")) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "the disk is full")) << refused;
  EXPECT_EQ(coordinator_.GetJob("next").status().code(), absl::StatusCode::kNotFound);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_TRUE(ranks_[0].sink->closed->ok());

  store_.Fail(absl::OkStatus());
  Pass(absl::Seconds(2));
  EXPECT_TRUE(Create(Spec("next", 2, 2)).ok());
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_EQ(Get("next").state(), v1::FORMING);
}

TEST_F(CoordinatorRestoreTest, ACancelThatCannotBeKeptIsNotAcknowledged) {
  StartGpt(2);
  store_.Fail(absl::UnavailableError("read-only"));
  const absl::Status status = coordinator_.CancelJob("gpt", "enough", "cancel-1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "job gpt is CANCELLED, but")) << status;
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  store_.Fail(absl::OkStatus());
  EXPECT_TRUE(coordinator_.CancelJob("gpt", "enough", "cancel-1").ok());
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
}

TEST_F(CoordinatorRestoreTest, WhatWasAcknowledgedOutlivesTheMachinesPower) {
  StartGpt(2);
  ASSERT_TRUE(Create(Spec("next", 2, 2)).ok());
  ASSERT_TRUE(coordinator_.CancelJob("next", "enough").ok());
  ASSERT_TRUE(Report(3).ok());
  Pass(absl::Seconds(2), {agent_, ranks_[0], ranks_[1]});
  store_.LosePower();
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").generation(), 1);
  EXPECT_EQ(Get("gpt").step(), 0);
  EXPECT_EQ(Get("next").state(), v1::CANCELLED);
  RejoinAll();
  EXPECT_EQ(WorkerStates(), (Strings{"READY", "READY"}));
}

TEST_F(CoordinatorRestoreTest, AJobThatWouldBeLaidOutOtherwiseFailsAndSaysSo) {
  StartGpt(2);
  StateChange change;
  change.jobs = store_.Load()->jobs;
  change.jobs.begin()->second.layout_fingerprint = "another";
  ASSERT_TRUE(store_.Commit(change).ok());
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "FAILED_PRECONDITION");
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(), "for another)")) << Get("gpt").reason();
  EXPECT_EQ(RejoinRank(0).sink->end->state(), v1::FAILED);
}

TEST_F(CoordinatorRestoreTest, AnOrderlyEndLeavesJobsToTheNextCoordinator) {
  StartGpt(2);
  ASSERT_TRUE(Report(3).ok());
  coordinator_.Shutdown();
  for (const Member& member : {agent_, ranks_[0], ranks_[1]}) {
    EXPECT_FALSE(member.sink->end.has_value());
    EXPECT_EQ(member.sink->closed->code(), absl::StatusCode::kUnavailable);
    coordinator_.StreamBroken(member.id);
  }
  Pass(absl::Seconds(10));
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").step(), 3);
  RejoinAll();
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRestoreTest, EndedJobsAreListedWithTheirStatsAndPlans) {
  StartGpt(2);
  v1::ReportStatsRequest report;
  report.set_job("gpt");
  report.set_generation(1);
  report.set_incarnation("i0");
  report.set_step(5);
  v1::OperationSample& sample = *report.add_samples();
  sample.set_operation(v1::UNSHARD);
  sample.set_median_us(12);
  sample.set_count(1);
  ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  for (const Member& rank : ranks_) Leave(rank);
  Restart();
  EXPECT_EQ(coordinator_.ListJobs({})->jobs_size(), 1);
  const v1::JobStats stats = *coordinator_.GetStats("gpt");
  EXPECT_EQ(stats.state(), v1::SUCCEEDED);
  EXPECT_EQ(stats.step(), 5);
  ASSERT_EQ(stats.ranks_size(), 2);
  EXPECT_EQ(stats.ranks(1).pid(), 101);
  ASSERT_EQ(stats.units(0).operations_size(), 1);
  EXPECT_EQ(stats.units(0).operations(0).median_us(), 12);
  EXPECT_TRUE(coordinator_.GetPlan("gpt").ok());
}

TEST_F(CoordinatorRestoreTest, AJobWhoseRanksWereBuildingTheModelFailsAndSaysWhy) {
  v1::JobSpec spec = Spec("gpt", 2, 2);
  spec.clear_model();
  spec.mutable_model()->set_built(true);
  spec.set_workload("attached");
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "gpt", nullptr, "trainer");
  ASSERT_EQ(Get("gpt").state(), v1::DRAFT);
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(), "while the ranks built the model"))
      << Get("gpt").reason();
}

// Job "gpt" that outlives losses, RUNNING; then rank 1 is killed.
class CoordinatorRestoreRecoveryTest : public CoordinatorRestoreTest {
 protected:
  void StartAndLoseRank() {
    v1::JobSpec spec = Spec("gpt", 2, 2);
    spec.set_max_recoveries(10);
    ASSERT_TRUE(Create(spec).ok());
    agent_ = JoinHost("node-a", 2, "gpt");
    run_ = agent_.sink->form->run();
    ranks_ = {JoinRank("gpt", 1, 0), JoinRank("gpt", 1, 1)};
    for (const Member& rank : ranks_) Ready(rank);
    WorkerExited(agent_, 1, 0, 9);
    Pass(absl::Milliseconds(400), {agent_, ranks_[0]});
    ASSERT_EQ(Get("gpt").state(), v1::RECOVERING);
    ASSERT_EQ(Get("gpt").generation(), 2);
  }
  std::string run_;
};

TEST_F(CoordinatorRestoreRecoveryTest, ANextGenerationThatWasBegunIsFormed) {
  StartAndLoseRank();
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  agent_ = RejoinHost("node-a", 1);  // has not heard of generation 2
  const v1::FormHost& form = *agent_.sink->form;
  EXPECT_EQ(form.generation(), 2);
  EXPECT_TRUE(form.recover());
  EXPECT_EQ(form.attempt(), 2);
  EXPECT_EQ(form.run(), run_);
  EXPECT_EQ(form.restart_ranks_size(), 2);
  // The survivor's stream to the old generation is of no use.
  const Member old = RejoinRank(0);
  EXPECT_EQ(old.sink->end->state(), v1::RECOVERING);
  ranks_ = {JoinRank("gpt", 2, 0, nullptr, "new0"), JoinRank("gpt", 2, 1, nullptr, "new1")};
  for (const Member& rank : ranks_) Ready(rank, 4096, 3);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").step(), 3);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
}

TEST_F(CoordinatorRestoreRecoveryTest, RanksThatHaveJoinedTheNextGenerationGoOnInIt) {
  StartAndLoseRank();
  ranks_ = {JoinRank("gpt", 2, 0), JoinRank("gpt", 2, 1, nullptr, "new1")};
  Ready(ranks_[0], 4096, 3);
  Restart();
  agent_ = RejoinHost("node-a", 2);
  EXPECT_FALSE(agent_.sink->form.has_value());
  EXPECT_FALSE(agent_.sink->end.has_value());
  v1::AttendRequest request;
  v1::JoinRank* join = request.mutable_join_rank();
  join->set_job("gpt");
  join->set_generation(2);
  join->set_incarnation("i0");
  join->set_rejoin(true);
  join->set_ready(true);
  join->set_step(3);
  const Member first = Join(request, nullptr);
  Ready(RejoinRank(1, false, nullptr, "new1", 2), 4096, 3);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(first.sink->starts, 1);
}

TEST_F(CoordinatorRestoreRecoveryTest, AHostThatWasAwaitedIsAwaitedStill) {
  StartAndLoseRank();
  coordinator_.StreamBroken(agent_.id);
  Pass(absl::Milliseconds(400));
  ASSERT_EQ(Get("gpt").state(), v1::RECOVERING);
  Restart();
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  const Member other = JoinHost("node-b", 2, "gpt");
  Pass(absl::Seconds(4), {other});
  EXPECT_FALSE(other.sink->form.has_value()) << "the old host has not had its time";
  Pass(absl::Seconds(2), {other});
  ASSERT_TRUE(other.sink->form.has_value());
  EXPECT_EQ(other.sink->form->generation(), 3);
  EXPECT_FALSE(other.sink->form->recover());
  EXPECT_EQ(other.sink->form->run(), run_);
  EXPECT_GE(other.sink->form->attempt(), 2);
}

TEST_F(CoordinatorRestoreRecoveryTest, ALossAfterTheRestartIsRecoveredFrom) {
  v1::JobSpec spec = Spec("gpt", 2, 2);
  spec.set_max_recoveries(10);
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "gpt");
  ranks_ = {JoinRank("gpt", 1, 0), JoinRank("gpt", 1, 1)};
  for (const Member& rank : ranks_) Ready(rank);
  Restart();
  agent_ = RejoinHost("node-a", 1);
  WorkerExited(agent_, 1, 0, 9);  // it ended while the coordinator was away
  const Member rank = RejoinRank(0);
  Pass(absl::Milliseconds(500), {agent_, rank});
  ASSERT_TRUE(agent_.sink->form.has_value());
  EXPECT_EQ(agent_.sink->form->generation(), 2);
  EXPECT_TRUE(agent_.sink->form->recover());
  EXPECT_EQ(agent_.sink->form->attempt(), 2);
}

TEST_F(CoordinatorRestoreTest, WhatCannotBeReadIsAnError) {
  store_.Fail(absl::DataLossError("damaged"));
  Coordinator coordinator({.clock = &clock_, .store = &store_});
  EXPECT_EQ(coordinator.Restore().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera
