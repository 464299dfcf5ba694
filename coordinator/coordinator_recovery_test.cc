// What follows a loss where the hosts stay: the next generation, in place.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorRecoveryTest : public CoordinatorFixture {
 protected:
  static v1::JobSpec Recoverable(int workers, int max_recoveries = 10) {
    v1::JobSpec spec = Spec("gpt", workers, workers);
    spec.set_max_recoveries(max_recoveries);
    spec.set_steps(100);
    return spec;
  }

  // Job "gpt" on host "node-a", RUNNING in generation 1.
  void Start(int workers, int max_recoveries = 10) {
    ASSERT_TRUE(Create(Recoverable(workers, max_recoveries)).ok());
    agent_ = JoinHost("node-a", workers, "gpt");
    JoinAll(1, workers);
    AllReady(0);
    ASSERT_EQ(Get("gpt").state(), v1::RUNNING);
  }
  void JoinAll(int64_t generation, int workers) {
    ranks_.clear();
    for (int rank = 0; rank < workers; ++rank) ranks_.push_back(JoinRank("gpt", generation, rank));
  }
  void AllReady(int64_t step) {
    for (const Member& rank : ranks_) Ready(rank, 4096, step);
  }
  // The agent and the ranks of the present generation, without `lost`.
  std::vector<Member> All(int lost = -1) const {
    std::vector<Member> all = {agent_};
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (rank != lost) all.push_back(ranks_[rank]);
    }
    return all;
  }
  // Rank `rank` is killed with SIGKILL, as it is seen from everywhere.
  void Kill(int rank, int64_t generation) {
    coordinator_.StreamBroken(ranks_[rank].id);
    WorkerExited(agent_, rank, 0, 9, generation);
    for (int other = 0; other < static_cast<int>(ranks_.size()); ++other) {
      if (other != rank) Broken(ranks_[other], rank);
    }
    Pass(absl::Milliseconds(400), All(rank));
  }
  std::vector<int> Restarted() const {
    const auto& ranks = agent_.sink->form->restart_ranks();
    return {ranks.begin(), ranks.end()};
  }
  absl::Status Report(int64_t generation, int rank, int64_t step, int64_t checkpoint_step = 0) {
    v1::ReportStatsRequest request;
    request.set_job("gpt");
    request.set_generation(generation);
    request.set_rank(rank);
    request.set_incarnation(absl::StrCat("i", rank));
    request.set_step(step);
    request.set_checkpoint_step(checkpoint_step);
    return coordinator_.ReportStats(request);
  }
};

using Ranks = std::vector<int>;

TEST_F(CoordinatorRecoveryTest, AKilledRankIsReplacedAndTheJobRunsOn) {
  Start(3);
  EXPECT_EQ(agent_.sink->form->attempt(), 1);
  EXPECT_FALSE(agent_.sink->form->recover());
  const std::string run = agent_.sink->form->run();
  EXPECT_FALSE(run.empty());
  ASSERT_TRUE(Report(1, 0, 12).ok());
  const std::vector<Member> first = ranks_;
  Kill(1, 1);

  v1::Job job = Get("gpt");
  EXPECT_EQ(job.state(), v1::RECOVERING);
  EXPECT_EQ(job.reason(), "rank 1 on host node-a was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(job.recoveries(), 1);
  EXPECT_EQ(job.generation(), 2);
  EXPECT_EQ(job.step(), 12);
  EXPECT_FALSE(job.has_failed_rank());
  for (const int survivor : {0, 2}) {
    ASSERT_TRUE(first[survivor].sink->end.has_value());
    EXPECT_EQ(first[survivor].sink->end->state(), v1::RECOVERING);
    EXPECT_EQ(first[survivor].sink->end->reason(), job.reason());
    EXPECT_EQ(*first[survivor].sink->closed, absl::OkStatus());
  }
  EXPECT_FALSE(agent_.sink->closed.has_value());
  const v1::FormHost& form = *agent_.sink->form;
  EXPECT_TRUE(form.recover());
  EXPECT_EQ(form.generation(), 2);
  EXPECT_EQ(form.attempt(), 2);
  EXPECT_EQ(form.run(), run);
  EXPECT_EQ(Restarted(), Ranks({1}));
  ASSERT_EQ(form.assignments_size(), 3);
  EXPECT_EQ(form.assignments(1).generation(), 2);

  JoinAll(2, 3);
  AllReady(13);  // the step that was voted on is finished
  job = Get("gpt");
  EXPECT_EQ(job.state(), v1::RUNNING);
  EXPECT_EQ(job.step(), 13);
  EXPECT_EQ(job.recoveries(), 1);
  EXPECT_TRUE(job.reason().empty());
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->starts, 1);
  const std::vector<v1::Incident> incidents = IncidentsOf("gpt");
  ASSERT_EQ(incidents.size(), 1u);
  EXPECT_EQ(incidents[0].kind(), v1::Incident::LOST);
  EXPECT_EQ(incidents[0].generation(), 1);
  EXPECT_EQ(incidents[0].step(), 12);
  EXPECT_TRUE(absl::StartsWith(incidents[0].outcome(), "generation 2 began after "))
      << incidents[0].outcome();
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_EQ(agent_.sink->end->state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRecoveryTest, WithoutRecoveriesTheFirstLossFailsTheJob) {
  Start(2, /*max_recoveries=*/0);
  Kill(1, 1);
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason(), "rank 1 on host node-a was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(Get("gpt").failed_rank(), 1);
  EXPECT_EQ(Get("gpt").recoveries(), 0);
}

TEST_F(CoordinatorRecoveryTest, AfterMaxRecoveriesTheJobFails) {
  Start(2, /*max_recoveries=*/2);
  for (int generation = 1; generation <= 2; ++generation) {
    Kill(1, generation);
    EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
    Pass(absl::Seconds(1), {agent_});
    JoinAll(generation + 1, 2);
    AllReady(generation);
    ASSERT_EQ(Get("gpt").state(), v1::RUNNING) << generation;
  }
  Kill(0, 3);
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").recoveries(), 2);
  EXPECT_EQ(Get("gpt").failed_rank(), 0);
  EXPECT_EQ(Get("gpt").reason(),
            "rank 0 on host node-a was killed by signal 9 (SIGKILL); the job has recovered 2 "
            "times, as often as max_recoveries allows");
  EXPECT_EQ(agent_.sink->end->state(), v1::FAILED);
}

TEST_F(CoordinatorRecoveryTest, ALossBeforeTheFirstStepFailsTheJob) {
  ASSERT_TRUE(Create(Recoverable(2)).ok());
  agent_ = JoinHost("node-a", 2, "gpt");
  JoinAll(1, 2);
  Ready(ranks_[0]);
  coordinator_.StreamBroken(ranks_[1].id);
  WorkerExited(agent_, 1, 0, 9, 1);
  Pass(absl::Milliseconds(400), {agent_, ranks_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
}

TEST_F(CoordinatorRecoveryTest, ARanksOwnErrorFailsTheJobAtOnce) {
  Start(2);
  Leave(ranks_[1], absl::StatusCode::kInvalidArgument, "data is too short");
  Broken(ranks_[0], 1);
  WorkerExited(agent_, 1, 1, 0, 1);
  Pass(absl::Milliseconds(400), {agent_, ranks_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "INVALID_ARGUMENT");
  EXPECT_EQ(Get("gpt").reason(), "rank 1 on host node-a: data is too short");
}

TEST_F(CoordinatorRecoveryTest, BrokenIsEvidenceLikeLeavingAndTheRankStays) {
  Start(3);
  Broken(ranks_[0], 2, absl::StatusCode::kDeadlineExceeded, "waited 30s for rank 2");
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_FALSE(ranks_[0].sink->closed.has_value());
  Pass(absl::Milliseconds(400), All());
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").reason(),
            "rank 2 on host node-a is to blame, says rank 0: waited 30s for rank 2");
  // It lives, but it is stuck; the others are told and keep their processes.
  EXPECT_EQ(Restarted(), Ranks({2}));
  EXPECT_EQ(ranks_[1].sink->end->state(), v1::RECOVERING);
}

TEST_F(CoordinatorRecoveryTest, ARankThatIsBlamedButHasLeftItsCollectivesItselfIsNotRestarted) {
  Start(3);
  Broken(ranks_[0], 1);
  Broken(ranks_[1], 2);
  Broken(ranks_[2], 1);
  Pass(absl::Milliseconds(400), All());
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Restarted(), Ranks());
}

TEST_F(CoordinatorRecoveryTest, RanksWhoseStreamOrLeaseIsLostAreRestarted) {
  Start(3);
  coordinator_.StreamBroken(ranks_[0].id);
  Pass(absl::Milliseconds(400), All(0));
  EXPECT_EQ(Get("gpt").reason(), "rank 0 on host node-a is gone: its connection broke");
  EXPECT_EQ(Restarted(), Ranks({0}));
  JoinAll(2, 3);
  AllReady(3);
  Pass(absl::Seconds(6), All(2));
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").reason(), "rank 2 on host node-a is lost: not heard of for 5s");
  EXPECT_EQ(Restarted(), Ranks({2}));
}

TEST_F(CoordinatorRecoveryTest, MessagesOfAnEndedGenerationChangeNothing) {
  Start(2);
  const std::vector<Member> old = ranks_;
  Kill(1, 1);
  EXPECT_EQ(Reason(Report(1, 0, 50)), "STALE_GENERATION");
  absl::Status late;
  JoinRank("gpt", 1, 1, &late, "new");
  EXPECT_EQ(Reason(late), "STALE_GENERATION");
  // Of streams that are over.
  Broken(old[0], 1);
  Ready(old[0]);
  Leave(old[0], absl::StatusCode::kInternal, "too late");
  coordinator_.StreamBroken(old[0].id);
  coordinator_.StreamBroken(old[1].id);
  JoinAll(2, 2);
  AllReady(7);
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
  EXPECT_EQ(Get("gpt").step(), 7);
}

TEST_F(CoordinatorRecoveryTest, TheNewProcessOfARankIsItsOnlyOne) {
  Start(2);
  Kill(1, 1);
  JoinRank("gpt", 2, 1, nullptr, "second");
  absl::Status status;
  JoinRank("gpt", 2, 1, &status, "first");
  EXPECT_EQ(Reason(status), "RANK_TAKEN");
}

TEST_F(CoordinatorRecoveryTest, ASecondLossWhileTheJobFormsIsTheNextRecovery) {
  Start(3);
  Kill(1, 1);
  JoinAll(2, 3);
  Ready(ranks_[0], 0, 5);
  coordinator_.StreamBroken(ranks_[2].id);
  WorkerExited(agent_, 2, 0, 9, 2);
  Pass(absl::Milliseconds(400), All(2));
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").recoveries(), 2);
  EXPECT_EQ(Get("gpt").reason(), "rank 2 on host node-a was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(Get("gpt").generation(), 2);
  // No step was committed since the loss before.
  Pass(absl::Milliseconds(500), {agent_});
  EXPECT_EQ(Get("gpt").generation(), 3);
  EXPECT_TRUE(agent_.sink->form->recover());
  EXPECT_EQ(Restarted(), Ranks({2}));
  JoinAll(3, 3);
  AllReady(5);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
}

TEST_F(CoordinatorRecoveryTest, TheTimeToFormCountsForRecoveriesToo) {
  Start(3);
  Kill(1, 1);
  const Member rank_0 = JoinRank("gpt", 2, 0);
  Pass(absl::Seconds(59), {agent_, rank_0});
  EXPECT_EQ(Get("gpt").generation(), 2);
  Pass(absl::Seconds(2), {agent_, rank_0});
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").recoveries(), 2);
  EXPECT_EQ(Get("gpt").reason(),
            "1 of 3 workers joined; ranks 1-2 are missing after 1m on host node-a");
  EXPECT_EQ(Get("gpt").generation(), 3);
  EXPECT_EQ(Restarted(), Ranks({1, 2}));
  // Joined, but not ready in time.
  JoinAll(3, 3);
  Ready(ranks_[0], 0, 2);
  Pass(absl::Seconds(61), All());
  EXPECT_EQ(Get("gpt").recoveries(), 3);
  EXPECT_EQ(Restarted(), Ranks({1, 2}));
}

TEST_F(CoordinatorRecoveryTest, TheEndOfAProcessOfTheLastGenerationIsNoNewLoss) {
  Start(3);
  Kill(1, 1);
  ASSERT_EQ(Get("gpt").generation(), 2);
  // The agent saw it before it was told of generation 2, and starts that rank too.
  WorkerExited(agent_, 2, 1, 0, 1);
  Pass(absl::Seconds(1), {agent_});
  EXPECT_EQ(Get("gpt").generation(), 2);
  JoinAll(2, 3);
  AllReady(4);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
}

TEST_F(CoordinatorRecoveryTest, ASurvivorThatEndsBeforeItRejoinsIsStartedAgainAndNotBlamed) {
  for (const int64_t said : {2, 0}) {
    SCOPED_TRACE(said);
    if (said == 0) {
      ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
      coordinator_.StreamBroken(agent_.id);
    }
    const int64_t base = said == 2 ? 0 : Get("gpt").generation();
    ASSERT_TRUE(Create(Recoverable(3)).ok());
    agent_ = JoinHost("node-a", 3, "gpt");
    JoinAll(base + 1, 3);
    AllReady(0);
    Kill(1, base + 1);
    ASSERT_EQ(Get("gpt").generation(), base + 2);
    // Its program does not expect the end of a generation.
    const Member rank_1 = JoinRank("gpt", base + 2, 1);
    WorkerExited(agent_, 0, 1, 0, said == 0 ? 0 : base + 2);
    Pass(absl::Milliseconds(100), {agent_, rank_1});
    WorkerExited(agent_, 2, 1, 0, said == 0 ? 0 : base + 2);
    Pass(absl::Milliseconds(400), {agent_, rank_1});
    EXPECT_EQ(Get("gpt").generation(), base + 3);
    EXPECT_EQ(Get("gpt").recoveries(), 1);
    EXPECT_EQ(Get("gpt").reason(), "rank 1 on host node-a was killed by signal 9 (SIGKILL)");
    // Also the one that had joined: it could not bear the end of another generation either.
    EXPECT_EQ(Restarted(), Ranks({0, 1, 2}));
    JoinAll(base + 3, 3);
    AllReady(9);
    EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  }
}

TEST_F(CoordinatorRecoveryTest, ProcessesThatKeepEndingDoNotRecoverForEver) {
  Start(2, /*max_recoveries=*/3);
  Kill(1, 1);
  int64_t last = 0;
  for (int round = 0; round < 100 && Get("gpt").state() == v1::RECOVERING; ++round) {
    const int64_t generation = Get("gpt").generation();
    if (generation > last) {
      WorkerExited(agent_, 0, 1, 0, generation);
      WorkerExited(agent_, 1, 1, 0, generation);
      last = generation;
    }
    Pass(absl::Milliseconds(500), {agent_});
  }
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").recoveries(), 3);
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "rank 0 on host node-a exited with code 1"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorRecoveryTest, RanksThatAreDoneAreStartedAgainWhenAnotherDiesAtTheEnd) {
  Start(3);
  ASSERT_TRUE(Report(1, 0, 100).ok());
  Leave(ranks_[0]);
  WorkerExited(agent_, 0, 0, 0, 1);
  Leave(ranks_[2]);
  coordinator_.StreamBroken(ranks_[1].id);
  WorkerExited(agent_, 1, 0, 9, 1);
  Pass(absl::Milliseconds(400), {agent_});
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(Restarted(), Ranks({0, 1, 2}));
  JoinAll(2, 3);
  AllReady(100);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorRecoveryTest, CancelledWhileItRecovers) {
  Start(2);
  Kill(1, 1);
  const Member rank_1 = JoinRank("gpt", 2, 1);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  EXPECT_EQ(agent_.sink->end->state(), v1::CANCELLED);
  EXPECT_EQ(rank_1.sink->end->state(), v1::CANCELLED);
  absl::Status status;
  JoinRank("gpt", 2, 0, &status);
  EXPECT_EQ(Reason(status), "STALE_GENERATION");
  Pass(absl::Seconds(70));
  EXPECT_EQ(Get("gpt").generation(), 2);
}

TEST_F(CoordinatorRecoveryTest, DrainedWhileItRecoversItStopsOnceItRuns) {
  Start(2);
  Kill(1, 1);
  JoinAll(2, 2);
  const auto drained = coordinator_.DrainJob("gpt");
  ASSERT_TRUE(drained.ok());
  EXPECT_EQ(drained->state(), v1::RECOVERING);
  EXPECT_TRUE(drained->draining());
  EXPECT_EQ(ranks_[0].sink->drains, 0);
  AllReady(8);
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->drains, 1);
  ASSERT_TRUE(Report(2, 0, 9).ok());
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  EXPECT_EQ(Get("gpt").reason(), "drained after step 9 of 100");
}

TEST_F(CoordinatorRecoveryTest, ADrainingJobThatLosesARankGoesOnDraining) {
  Start(2);
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  Kill(1, 1);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_TRUE(Get("gpt").draining());
  JoinAll(2, 2);
  AllReady(8);
  EXPECT_TRUE(Get("gpt").draining());
  for (const Member& rank : ranks_) {
    EXPECT_EQ(rank.sink->starts, 1);
    EXPECT_EQ(rank.sink->drains, 1);
  }
}

TEST_F(CoordinatorRecoveryTest, WaitsLongerWhileNoStepIsCommitted) {
  Start(1);
  const int64_t tenths[] = {0, 5, 10, 20};
  for (int loss = 0; loss < 4; ++loss) {
    const int64_t generation = loss + 1;
    coordinator_.StreamBroken(ranks_[0].id);
    WorkerExited(agent_, 0, 0, 11, generation);
    Pass(absl::Milliseconds(300), {agent_});
    ASSERT_EQ(Get("gpt").state(), v1::RECOVERING);
    if (tenths[loss] > 0) {
      Pass(absl::Milliseconds(100 * (tenths[loss] - 1)), {agent_});
      EXPECT_EQ(Get("gpt").generation(), generation) << loss;
      Pass(absl::Milliseconds(100), {agent_});
    }
    EXPECT_EQ(Get("gpt").generation(), generation + 1) << loss;
    JoinAll(generation + 1, 1);
    AllReady(0);
  }
  EXPECT_EQ(Get("gpt").recoveries(), 4);
}

TEST_F(CoordinatorRecoveryTest, RanksThatWouldGoOnAtDifferentStepsFailTheJob) {
  Start(2);
  Kill(1, 1);
  JoinAll(2, 2);
  Ready(ranks_[0], 0, 12);
  Ready(ranks_[1], 0, 13);
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "INTERNAL");
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(),
                               "rank 1 would go on after step 13 and rank 0 after step 12"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorRecoveryTest, TheNewestCheckpointIsShown) {
  Start(2);
  ASSERT_TRUE(Report(1, 0, 10, 8).ok());
  ASSERT_TRUE(Report(1, 1, 10).ok());
  EXPECT_EQ(Get("gpt").checkpoint_step(), 8);
}

TEST_F(CoordinatorRecoveryTest, AJobOnAGpuIsStartedAnewFromItsCheckpoint) {
  v1::JobSpec spec = Recoverable(2);
  spec.set_workload("attached");
  spec.set_device("cuda");
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "gpt", nullptr, "/opt/trainer");
  JoinAll(1, 2);
  AllReady(0);
  ASSERT_TRUE(Report(1, 0, 57, 40).ok());
  Kill(1, 1);
  EXPECT_FALSE(agent_.sink->form->recover());
  EXPECT_EQ(agent_.sink->form->attempt(), 2);
  EXPECT_EQ(agent_.sink->form->restart_ranks_size(), 0);
  JoinAll(2, 2);
  AllReady(40);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_EQ(Get("gpt").step(), 40);  // 17 steps are done again
}

}  // namespace
}  // namespace tessera
