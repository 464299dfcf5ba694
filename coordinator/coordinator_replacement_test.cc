// What follows the loss of a host: another takes its place, or the job goes on with fewer workers.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorReplacementTest : public CoordinatorFixture {
 protected:
  static v1::JobSpec Hosts(int min_workers, int max_workers) {
    v1::JobSpec spec = Spec("gpt", min_workers, max_workers);
    spec.set_max_recoveries(10);
    spec.set_steps(100);
    spec.mutable_mesh()->set_strategy("hybrid_shard");
    spec.mutable_mesh()->set_local_world_size(2);
    return spec;
  }

  // RUNNING on hosts "node-0", "node-1", ... with two ranks each.
  void Start(int hosts, const v1::JobSpec& spec) {
    for (int host = 0; host < hosts; ++host) {
      hosts_.push_back(JoinHost(absl::StrCat("node-", host), 2, "gpt"));
    }
    ASSERT_TRUE(Create(spec).ok());
    Run(1, 2 * hosts, 0);
  }
  // The ranks of the generation join and are ready.
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
  void Lose(int host) { coordinator_.StreamBroken(hosts_[host].id); }

  std::vector<Member> hosts_;
};

TEST_F(CoordinatorReplacementTest, AnotherHostTakesTheIndexOfALostOne) {
  Start(3, Hosts(6, 6));
  Report(1, 57);
  Lose(1);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").reason(), "host node-1 is lost: its agent (pid 7) is gone");
  EXPECT_EQ(Get("gpt").recoveries(), 1);
  EXPECT_EQ(hosts_[0].sink->end->state(), v1::RECOVERING);
  EXPECT_EQ(ranks_[0].sink->end->state(), v1::RECOVERING);
  Pass(absl::Seconds(10), {hosts_[0], hosts_[2]});
  EXPECT_EQ(Get("gpt").generation(), 1);
  // Too small; and one of another job's.
  const Member small = JoinHost("small", 1, "");
  EXPECT_EQ(Get("gpt").generation(), 1);
  const Member other = JoinHost("node-x", 2, "gpt");
  EXPECT_EQ(Get("gpt").generation(), 2);
  const Member hosts[] = {hosts_[0], other, hosts_[2]};
  for (int host = 0; host < 3; ++host) {
    const v1::FormHost& form = *hosts[host].sink->form;
    EXPECT_EQ(form.generation(), 2);
    EXPECT_EQ(form.host(), host);
    EXPECT_FALSE(form.recover());
    EXPECT_EQ(form.attempt(), 2);
    EXPECT_EQ(form.run(), hosts[0].sink->form->run());
    EXPECT_EQ(form.assignments(0).rank(), 2 * host);
    EXPECT_EQ(form.host_names(1), "node-x");
  }
  EXPECT_FALSE(small.sink->form.has_value());
  Run(2, 6, 40);
  EXPECT_EQ(Get("gpt").step(), 40);
}

TEST_F(CoordinatorReplacementTest, AHostOfThePoolReplacesALostOneAtOnce) {
  Start(2, Hosts(4, 4));
  const Member pool = JoinHost("pool", 4, "");
  Lose(0);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(pool.sink->form->host(), 0);
  EXPECT_EQ(pool.sink->form->assignments_size(), 2);
  EXPECT_EQ(hosts_[1].sink->form->host(), 1);
}

TEST_F(CoordinatorReplacementTest, WithoutAnotherHostTheJobGoesOnWithFewerWorkers) {
  Start(3, Hosts(2, 6));
  Lose(1);
  Pass(absl::Seconds(29), {hosts_[0], hosts_[2]});
  EXPECT_EQ(Get("gpt").generation(), 1);
  Pass(absl::Seconds(1), {hosts_[0], hosts_[2]});
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(Get("gpt").world_size(), 4);
  EXPECT_EQ(Get("gpt").reason(),
            "host node-1 is lost: its agent (pid 7) is gone; goes on with 4 workers instead of 6");
  const std::vector<v1::Incident> incidents = IncidentsOf("gpt");
  ASSERT_EQ(incidents.size(), 2u);
  EXPECT_EQ(incidents[0].kind(), v1::Incident::LOST);
  EXPECT_EQ(incidents[1].kind(), v1::Incident::RESIZED);
  EXPECT_EQ(incidents[1].generation(), 2);
  EXPECT_EQ(incidents[1].message(), "the job goes on with 4 workers instead of 6");
  EXPECT_EQ(coordinator_.GetPlan("gpt")->layout().world_size(), 4);
  EXPECT_EQ(hosts_[0].sink->form->host(), 0);
  EXPECT_EQ(hosts_[2].sink->form->host(), 1);
  EXPECT_EQ(hosts_[2].sink->form->assignments(0).rank(), 2);
  EXPECT_EQ(hosts_[2].sink->form->layout().world_size(), 4);
  EXPECT_FALSE(hosts_[2].sink->form->recover());
  Run(2, 4, 0);
  // Each loss is on its own: a rank of what is left is replaced in place.
  coordinator_.StreamBroken(ranks_[3].id);
  WorkerExited(hosts_[2], 3, 0, 9, 2);
  Pass(absl::Seconds(1), {hosts_[0], hosts_[2]});
  EXPECT_TRUE(hosts_[2].sink->form->recover());
  EXPECT_EQ(hosts_[2].sink->form->restart_ranks_size(), 1);
  EXPECT_EQ(hosts_[0].sink->form->restart_ranks_size(), 0);
  EXPECT_EQ(Get("gpt").recoveries(), 2);
}

TEST_F(CoordinatorReplacementTest, BelowMinWorkersTheJobFailsAndSaysSo) {
  Start(2, Hosts(4, 4));
  Lose(1);
  Pass(absl::Seconds(29), {hosts_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  Pass(absl::Seconds(1), {hosts_[0]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason_code(), "UNAVAILABLE");
  EXPECT_EQ(Get("gpt").reason(),
            "host node-1 is lost: its agent (pid 7) is gone; no host with 2 workers came within "
            "30s (timeouts.replacement), and those that are left do not make 4 workers "
            "(mesh.min_workers)");
  EXPECT_EQ(hosts_[0].sink->end->state(), v1::FAILED);
}

TEST_F(CoordinatorReplacementTest, AHostTooManyAfterShrinkingIsLetGo) {
  // 12 sequences: 10 workers cannot share them, so one of five hosts has no place.
  v1::JobSpec spec = Hosts(2, 12);
  Start(6, spec);
  Lose(0);
  Pass(absl::Seconds(31), {hosts_.begin() + 1, hosts_.end()});
  EXPECT_EQ(Get("gpt").world_size(), 6);
  for (const int kept : {1, 2, 3}) EXPECT_EQ(hosts_[kept].sink->form->generation(), 2);
  for (const int left : {4, 5}) {
    EXPECT_EQ(hosts_[left].sink->form->generation(), 1);
    EXPECT_EQ(hosts_[left].sink->end->state(), v1::CANCELLED);
    EXPECT_EQ(hosts_[left].sink->end->reason(), "job gpt goes on with 6 workers on other hosts");
  }
  // What they still say is nothing to the job.
  WorkerExited(hosts_[5], 11, 0, 9, 1);
  coordinator_.StreamBroken(hosts_[4].id);
  Run(2, 6, 0);
}

TEST_F(CoordinatorReplacementTest, ASecondHostThatGoesWhileAnotherIsAwaitedIsMissingToo) {
  Start(3, Hosts(2, 6));
  Lose(1);
  Pass(absl::Seconds(10), {hosts_[0], hosts_[2]});
  Leave(hosts_[2], absl::StatusCode::kCancelled, "told to stop");
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").recoveries(), 1);
  const Member x = JoinHost("node-x", 2, "gpt");
  EXPECT_EQ(Get("gpt").generation(), 1);  // still one short
  Pass(absl::Seconds(21), {hosts_[0], x});
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(Get("gpt").world_size(), 4);
  EXPECT_EQ(x.sink->form->host(), 1);
}

TEST_F(CoordinatorReplacementTest, AReplacementThatGoesWhileItFormsIsTheNextLoss) {
  Start(2, Hosts(4, 4));
  Lose(1);
  const Member x = JoinHost("node-x", 2, "gpt");
  ASSERT_EQ(Get("gpt").generation(), 2);
  coordinator_.StreamBroken(x.id);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").recoveries(), 2);
  const Member y = JoinHost("node-y", 2, "gpt");
  Pass(absl::Seconds(1), {hosts_[0], y});
  EXPECT_EQ(Get("gpt").generation(), 3);
  EXPECT_EQ(y.sink->form->attempt(), 3);
  EXPECT_EQ(hosts_[0].sink->form->attempt(), 3);
  Run(3, 4, 0);
}

TEST_F(CoordinatorReplacementTest, AProcessThatDiesBeforeARestartedJobRunsIsNoReasonToTrustFiles) {
  Start(2, Hosts(4, 4));
  const Member x = JoinHost("pool", 2, "");
  Lose(1);
  ASSERT_EQ(Get("gpt").generation(), 2);
  JoinRank("gpt", 2, 0);
  WorkerExited(x, 3, 0, 9, 2);
  Pass(absl::Seconds(2), {hosts_[0], x});
  EXPECT_EQ(Get("gpt").generation(), 3);
  EXPECT_FALSE(x.sink->form->recover());
  EXPECT_FALSE(hosts_[0].sink->form->recover());
}

TEST_F(CoordinatorReplacementTest, AnAgentThatIsToldToStopIsALostHost) {
  Start(2, Hosts(4, 4));
  Leave(hosts_[1], absl::StatusCode::kCancelled, "the agent of host node-1 was told to stop");
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_EQ(Get("gpt").reason(), "host node-1: the agent of host node-1 was told to stop");
  JoinHost("node-x", 2, "gpt");
  EXPECT_EQ(Get("gpt").generation(), 2);
}

TEST_F(CoordinatorReplacementTest, AnAgentThatHasNotTheMemoryFailsTheJob) {
  Start(2, Hosts(4, 4));
  Lose(1);
  const Member x = JoinHost("node-x", 2, "gpt");
  Leave(x, absl::StatusCode::kResourceExhausted, "needs 9 GiB, has 4");
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(Get("gpt").reason(), "host node-x: needs 9 GiB, has 4");
}

TEST_F(CoordinatorReplacementTest, AHostWhoseAgentAndRanksAreSilentIsReplaced) {
  Start(2, Hosts(4, 4));
  const Member x = JoinHost("pool", 2, "");
  // The agent was heard of last, so the leases of its ranks end before its own.
  Pass(absl::Seconds(1), {hosts_[1], x});
  Pass(absl::Seconds(6), {hosts_[0], ranks_[0], ranks_[1], x});
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  EXPECT_TRUE(absl::StartsWith(Get("gpt").reason(), "host node-1 is lost")) << Get("gpt").reason();
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(x.sink->form->host(), 1);
  EXPECT_EQ(hosts_[1].sink->closed->code(), absl::StatusCode::kUnavailable);
}

TEST_F(CoordinatorReplacementTest, AJobOnOneHostWaitsForAnotherAndTakesASmallerOneInTheEnd) {
  v1::JobSpec spec = Spec("gpt", 2, 4);
  spec.set_max_recoveries(10);
  ASSERT_TRUE(Create(spec).ok());
  const Member first = JoinHost("node-a", 4, "gpt");
  Run(1, 4, 0);
  coordinator_.StreamBroken(first.id);
  EXPECT_EQ(Get("gpt").state(), v1::RECOVERING);
  const Member small = JoinHost("node-b", 3, "gpt");
  EXPECT_EQ(Get("gpt").generation(), 1);
  Pass(absl::Seconds(31), {small});
  EXPECT_EQ(Get("gpt").generation(), 2);
  EXPECT_EQ(Get("gpt").world_size(), 3);
  Run(2, 3, 0);
  coordinator_.StreamBroken(small.id);
  const Member large = JoinHost("node-c", 8, "gpt");
  EXPECT_EQ(Get("gpt").world_size(), 3);
  Pass(absl::Seconds(1), {large});
  EXPECT_EQ(Get("gpt").generation(), 3);
  Run(3, 3, 0);
  coordinator_.StreamBroken(large.id);
  Pass(absl::Seconds(32));
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_TRUE(absl::StrContains(Get("gpt").reason(), "no host came within 30s"))
      << Get("gpt").reason();
}

TEST_F(CoordinatorReplacementTest, CancelledWhileAHostIsAwaited) {
  Start(2, Hosts(4, 4));
  Lose(1);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  EXPECT_EQ(hosts_[0].sink->end->state(), v1::CANCELLED);
  const Member late = JoinHost("node-x", 2, "gpt");
  EXPECT_EQ(late.sink->end->state(), v1::CANCELLED);
  Pass(absl::Seconds(40));
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
}

TEST_F(CoordinatorReplacementTest, AHostOfTheWrongProgramIsNoReplacement) {
  Start(2, Hosts(4, 4));
  const Member trainer = JoinHost("pool", 2, "", nullptr, "/opt/trainer");
  Lose(1);
  EXPECT_EQ(Get("gpt").generation(), 1);
  EXPECT_FALSE(trainer.sink->form.has_value());
  absl::Status status;
  JoinHost("node-x", 2, "gpt", &status, "/opt/trainer");
  EXPECT_EQ(Reason(status), "WRONG_PROGRAM");
}

}  // namespace
}  // namespace tessera
