// Hosts that stand by for a running job, and jobs that take them at a step boundary.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorGrowthTest : public CoordinatorFixture {
 protected:
  static v1::JobSpec Growing(int max_workers = 4) {
    v1::JobSpec spec = Spec("gpt", 2, max_workers);
    spec.set_max_recoveries(10);
    spec.set_steps(100);
    spec.mutable_mesh()->set_strategy("hybrid_shard");
    spec.mutable_mesh()->set_local_world_size(2);
    spec.mutable_checkpoint()->set_dir("/checkpoints/gpt");
    return spec;
  }

  // RUNNING with two ranks on "node-a".
  void Start(const v1::JobSpec& spec) {
    ASSERT_TRUE(Create(spec).ok());
    agent_ = JoinHost("node-a", 2, "gpt");
    Run(1, 2, 0);
  }
  void Run(int64_t generation, int world_size, int64_t step) {
    ranks_.clear();
    for (int rank = 0; rank < world_size; ++rank)
      ranks_.push_back(JoinRank("gpt", generation, rank));
    for (const Member& rank : ranks_) Ready(rank, 0, step);
    ASSERT_EQ(Get("gpt").state(), v1::RUNNING);
    ASSERT_EQ(Get("gpt").generation(), generation);
  }
  void Report(int64_t generation, int64_t step) {
    v1::ReportStatsRequest request;
    request.set_job("gpt");
    request.set_generation(generation);
    request.set_incarnation("i0");
    request.set_step(step);
    EXPECT_TRUE(coordinator_.ReportStats(request).ok());
  }
  v1::ListWorkersResponse Workers(int page_size = 0, const std::string& token = "") {
    v1::ListWorkersRequest request;
    request.set_job("gpt");
    request.set_page_size(page_size);
    request.set_page_token(token);
    return *coordinator_.ListWorkers(request);
  }
};

TEST_F(CoordinatorGrowthTest, AHostThatJoinsARunningJobEnlargesItAtAStepBoundary) {
  Start(Growing());
  const Member b = JoinHost("node-b", 2, "gpt");
  EXPECT_EQ(b.sink->welcomes, 1);
  EXPECT_FALSE(b.sink->form.has_value());
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->resizes, 1);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  EXPECT_FALSE(Get("gpt").draining());
  EXPECT_EQ(Get("gpt").reason(),
            "stops after the step that it is in, to go on with 4 workers instead of 2");

  Report(1, 31);
  Leave(ranks_[0]);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Leave(ranks_[1]);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").reason(), "goes on after step 31 with 4 workers instead of 2");
  EXPECT_EQ(Get("gpt").recoveries(), 0);
  EXPECT_EQ(Get("gpt").world_size(), 4);
  EXPECT_EQ(agent_.sink->form->generation(), 2);
  EXPECT_EQ(agent_.sink->form->host(), 0);
  EXPECT_EQ(b.sink->form->host(), 1);
  for (const Member& host : {agent_, b}) {
    EXPECT_FALSE(host.sink->form->recover());
    EXPECT_EQ(host.sink->form->attempt(), 2);
    EXPECT_EQ(host.sink->form->layout().world_size(), 4);
  }
  Run(2, 4, 31);
  EXPECT_EQ(Get("gpt").step(), 31);
  ASSERT_EQ(IncidentsOf("gpt").size(), 1u);
  EXPECT_EQ(IncidentsOf("gpt")[0].kind(), v1::Incident::RESIZED);
  EXPECT_EQ(IncidentsOf("gpt")[0].message(),
            "the job goes on after step 31 with 4 workers instead of 2");
  for (const Member& rank : ranks_) {
    EXPECT_EQ(rank.sink->drains, 0);
    Leave(rank);
  }
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  EXPECT_EQ(b.sink->end->state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorGrowthTest, HostsStandByUntilTheyAreEnough) {
  // 12 sequences: 8 and 10 workers cannot share them, 12 can.
  v1::JobSpec spec = Growing(12);
  ASSERT_TRUE(Create(spec).ok());
  // The job takes the first, so the others come while it forms.
  agent_ = JoinHost("node-a", 2, "gpt");
  const Member b = JoinHost("node-b", 2, "gpt");
  const Member c = JoinHost("node-c", 2, "gpt");
  Run(1, 2, 0);
  EXPECT_EQ(ranks_[0].sink->resizes, 1);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").world_size(), 6);
  EXPECT_EQ(c.sink->form->host(), 2);
  Run(2, 6, 5);
  const Member d = JoinHost("node-d", 2, "gpt");
  const Member e = JoinHost("node-e", 2, "gpt");
  EXPECT_EQ(ranks_[0].sink->resizes, 0);
  ASSERT_EQ(Workers().workers_size(), 8);
  EXPECT_EQ(Workers().workers(6).state(), "STANDBY");
  EXPECT_EQ(Workers().workers(6).rank(), -1);
  EXPECT_EQ(Workers().workers(6).host_name(), "node-d");
  EXPECT_EQ(Workers().workers(6).position(), "offers 2 workers");
  EXPECT_EQ(Workers(7).workers_size(), 7);
  ASSERT_EQ(Workers(7, Workers(7).next_page_token()).workers_size(), 1);
  EXPECT_EQ(Workers(7, "7").workers(0).host_name(), "node-e");
  const Member f = JoinHost("node-f", 2, "gpt");
  EXPECT_EQ(ranks_[0].sink->resizes, 1);
  absl::Status status;
  JoinHost("node-g", 2, "gpt", &status);
  EXPECT_EQ(Reason(status), "SECOND_HOST");
  for (const Member& rank : ranks_) Leave(rank);
  Run(3, 12, 9);
  EXPECT_EQ(f.sink->form->host(), 5);
}

TEST_F(CoordinatorGrowthTest, JobsThatCannotGrowRefuseAnotherHost) {
  Start(Growing(2));
  absl::Status status;
  JoinHost("node-b", 2, "gpt", &status);
  EXPECT_EQ(Reason(status), "SECOND_HOST");
  JoinHost("node-b", 1, "gpt", &status);  // and one that is too small for one that can
  EXPECT_EQ(Reason(status), "SECOND_HOST");
}

TEST_F(CoordinatorGrowthTest, WithoutACheckpointTheHostStandsByAndTheReasonIsShown) {
  v1::JobSpec spec = Growing();
  spec.mutable_checkpoint()->clear_dir();
  Start(spec);
  const Member b = JoinHost("node-b", 2, "gpt");
  EXPECT_EQ(ranks_[0].sink->drains, 0);
  ASSERT_EQ(Workers().workers_size(), 3);
  EXPECT_EQ(Workers().workers(2).position(),
            "the job could have 4 workers, but it has no checkpoint to grow from: checkpoint.dir "
            "is not set");
  // It replaces a lost host at once.
  coordinator_.StreamBroken(agent_.id);
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(b.sink->form->host(), 0);
  EXPECT_EQ(Get("gpt").world_size(), 2);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
}

TEST_F(CoordinatorGrowthTest, ALossWhileItStopsIsRecoveredFirstAndThenItGrows) {
  Start(Growing());
  const Member b = JoinHost("node-b", 2, "gpt");
  Leave(ranks_[0]);
  coordinator_.StreamBroken(ranks_[1].id);
  WorkerExited(agent_, 1, 0, 9, 1);
  Pass(absl::Milliseconds(400), {agent_, b});
  EXPECT_EQ(Get("gpt").recoveries(), 1);
  EXPECT_TRUE(agent_.sink->form->recover());
  EXPECT_EQ(agent_.sink->form->restart_ranks_size(), 2);
  Run(2, 2, 30);
  for (const Member& rank : ranks_) {
    EXPECT_EQ(rank.sink->resizes, 1);
    Leave(rank);
  }
  EXPECT_EQ(Get("gpt").world_size(), 4);
  Run(3, 4, 31);
}

TEST_F(CoordinatorGrowthTest, AHostThatGoesBeforeTheJobHasStoppedLeavesItAsItWas) {
  Start(Growing());
  const Member b = JoinHost("node-b", 2, "gpt");
  coordinator_.StreamBroken(b.id);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(Get("gpt").world_size(), 2);
  EXPECT_FALSE(agent_.sink->form->recover());  // from the checkpoint that it has saved
  Run(2, 2, 7);
  EXPECT_EQ(Get("gpt").recoveries(), 0);
}

TEST_F(CoordinatorGrowthTest, AHostThatIsLostWhileTheJobHasStoppedIsMadeUpFor) {
  Start(Growing());
  const Member b = JoinHost("node-b", 2, "gpt");
  Leave(ranks_[0]);
  coordinator_.StreamBroken(agent_.id);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
  EXPECT_EQ(Get("gpt").world_size(), 2);
  EXPECT_EQ(b.sink->form->host(), 0);
}

TEST_F(CoordinatorGrowthTest, TheLastStepEndsTheJobWhateverStandsBy) {
  Start(Growing());
  JoinHost("node-b", 2, "gpt");
  Report(1, 100);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
}

TEST_F(CoordinatorGrowthTest, ADrainGoesBeforeGrowing) {
  Start(Growing());
  JoinHost("node-b", 2, "gpt");
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->drains, 2);
  Report(1, 7);
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  EXPECT_EQ(Get("gpt").reason(), "drained after step 7 of 100");
}

TEST_F(CoordinatorGrowthTest, ADrainingJobDoesNotGrow) {
  Start(Growing());
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  const Member b = JoinHost("node-b", 2, "gpt");
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->resizes, 0);
  EXPECT_EQ(Workers().workers(2).state(), "STANDBY");
  for (const Member& rank : ranks_) Leave(rank);
  EXPECT_EQ(b.sink->end->state(), v1::CANCELLED);
}

}  // namespace
}  // namespace tessera
