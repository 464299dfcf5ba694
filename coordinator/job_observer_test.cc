#include "coordinator/job_observer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/proto_time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

std::string HostOf(int rank) { return absl::StrCat("node-", rank / 2); }

v1::Position At(v1::Activity activity, int unit, v1::Operation operation, int64_t sequence) {
  v1::Position position;
  position.set_step(12);
  position.set_activity(activity);
  position.set_unit(unit);
  position.set_operation(operation);
  position.set_sequence(sequence);
  return position;
}

class JobObserverTest : public ::testing::Test {
 protected:
  JobObserverTest() { Begin(); }

  // Three ranks and the units h.0 and the root.
  void Begin() {
    JobPlan plan;
    plan.plan.add_units()->set_fqn("h.0");
    plan.plan.add_units()->set_fqn("");
    plan.layout.add_units()->set_fqn("h.0");
    plan.layout.add_units()->set_fqn("");
    observer_.BeginGeneration(std::make_shared<PlannedJob>("gpt", plan), 3, absl::Seconds(1));
  }

  // Rank 1 computes and is not heard of any more; the others wait for it and say so.
  void Stop(absl::Duration waited) {
    observer_.Position(1, At(v1::COMPUTING, 0, v1::FORWARD, 37), kStart);
    for (const int rank : {0, 2})
      observer_.Position(rank, At(v1::WAITING, 1, v1::REDUCE, 40), kStart + absl::Seconds(1));
    for (const int rank : {0, 2}) {
      v1::Position waits = At(v1::WAITING, 1, v1::REDUCE, 40);
      SetDuration(waited, waits.mutable_time());
      observer_.Position(rank, waits, kStart + waited);
    }
  }

  // Each rank reports ten steps in a second, rank 2 with `us` of forward on h.0, others 8 ms.
  std::vector<v1::Incident> Report(int second, double us) {
    for (int rank = 0; rank < 3; ++rank) {
      totals_us_[rank] += 10 * (rank == 2 ? us : 8000);
      v1::ReportStatsRequest report;
      report.set_rank(rank);
      report.set_step(10 * second);
      v1::OperationSample* sample = report.add_samples();
      sample->set_unit(0);
      sample->set_operation(v1::FORWARD);
      sample->set_total_us(totals_us_[rank]);
      observer_.Report(report);
    }
    std::vector<v1::Incident> told = observer_.Advance(kStart + absl::Seconds(second), HostOf);
    for (v1::Incident& incident : told) {
      if (incident.number() == 0)
        incident = observer_.Keep(incident, kStart + absl::Seconds(second));
    }
    return told;
  }

  JobObserver observer_;
  double totals_us_[3] = {};
};

TEST_F(JobObserverTest, ExplainsAStoppedRankWhoseLeaseEnded) {
  Stop(absl::Seconds(5));
  Blame blame{absl::StatusCode::kUnavailable, "rank 1 on host node-0 is lost: not heard of for 5s",
              1};
  blame.lease_ended = true;
  const v1::Incident incident = observer_.Explain(blame, "node-0", kStart + absl::Seconds(5));
  EXPECT_EQ(blame.reason,
            "rank 1 on host node-0 is lost: not heard of for 5s; rank 1 computes on unit h.0 "
            "(forward) in step 12 for 5.0s, operation 37, not heard of for 5.0s; meanwhile ranks "
            "0, 2 have waited 5.0s in reduce of unit (root) (operation 40)");
  EXPECT_EQ(incident.kind(), v1::Incident::STUCK);
  EXPECT_EQ(incident.message(), blame.reason);
  ASSERT_EQ(incident.ranks_size(), 1);
  EXPECT_EQ(incident.ranks(0), 1);
  EXPECT_EQ(incident.host_name(), "node-0");
  EXPECT_EQ(incident.unit(), "(root)");
  EXPECT_EQ(incident.operation(), "REDUCE");
  ASSERT_EQ(incident.positions_size(), 3);
  EXPECT_EQ(incident.positions(2),
            "rank 2: waits in reduce of unit (root) in step 12 for 5.0s, operation 40");
}

TEST_F(JobObserverTest, ExplainsARankThatDoesNotComeThoughItLives) {
  Stop(absl::Seconds(30));
  Blame blame{absl::StatusCode::kDeadlineExceeded, "rank 1 on host node-0 is to blame", 1};
  EXPECT_EQ(observer_.Explain(blame, "node-0", kStart + absl::Seconds(30)).kind(),
            v1::Incident::STUCK);
  EXPECT_TRUE(absl::StrContains(blame.reason, "have waited 30.0s in reduce of unit (root)"));
}

TEST_F(JobObserverTest, SaysWhereALostRankWasButNotInTheReason) {
  Stop(absl::Seconds(1));
  Blame blame{absl::StatusCode::kUnavailable,
              "rank 1 on host node-0 was killed by signal 9 (SIGKILL)", 1};
  const v1::Incident incident = observer_.Explain(blame, "node-0", kStart + absl::Seconds(1));
  EXPECT_EQ(blame.reason, "rank 1 on host node-0 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(incident.kind(), v1::Incident::LOST);
  EXPECT_EQ(incident.message(),
            "rank 1 on host node-0 was killed by signal 9 (SIGKILL); as last heard it computes on "
            "unit h.0 (forward) in step 12 for 1.0s, operation 37");
  EXPECT_EQ(incident.unit(), "");
}

TEST_F(JobObserverTest, ALostHostHasNoRank) {
  Blame blame{absl::StatusCode::kUnavailable, "host node-0 is lost: its agent is gone", {}};
  const v1::Incident incident = observer_.Explain(blame, "", kStart);
  EXPECT_EQ(incident.kind(), v1::Incident::LOST);
  EXPECT_EQ(incident.ranks_size(), 0);
  EXPECT_EQ(incident.message(), "host node-0 is lost: its agent is gone");
}

TEST_F(JobObserverTest, KnowsADisagreement) {
  Blame blame{absl::StatusCode::kFailedPrecondition,
              "rank 1 on host node-0: ranks disagree on the plan, in unit h.0: ...", 1};
  EXPECT_EQ(observer_.Explain(blame, "node-0", kStart).kind(), v1::Incident::DISAGREEMENT);
}

TEST_F(JobObserverTest, ALossGetsItsOutcomeOnce) {
  Blame blame{absl::StatusCode::kUnavailable, "host node-0 is lost", {}};
  const v1::Incident kept = observer_.Keep(observer_.Explain(blame, "", kStart), kStart);
  EXPECT_EQ(kept.number(), 1);
  const auto ended = observer_.EndLoss("generation 2 began", kStart + absl::Milliseconds(1200));
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->number(), 1);
  EXPECT_EQ(ended->outcome(), "generation 2 began after 1.2s");
  EXPECT_FALSE(observer_.EndLoss("generation 3 began", kStart).has_value());
  EXPECT_EQ(observer_.incidents().Find(1)->outcome(), "generation 2 began after 1.2s");
}

TEST_F(JobObserverTest, AStragglerIsOneIncidentWithAnEnd) {
  std::vector<v1::Incident> all;
  for (int second = 0; second <= 40; ++second) {
    for (v1::Incident& told : Report(second, second <= 20 ? 20000 : 8000)) all.push_back(told);
  }
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].kind(), v1::Incident::STRAGGLER);
  EXPECT_EQ(all[0].message(),
            "rank 2 on host node-1 is slower than the others: its own work takes 20.0 ms a step, "
            "the median 8.0 ms, for 10.0s; it loses most in forward of unit h.0 (20.0 ms, the "
            "others 8.0 ms)");
  EXPECT_EQ(all[0].unit(), "h.0");
  EXPECT_EQ(all[0].operation(), "FORWARD");
  ASSERT_EQ(all[0].ranks_size(), 1);
  EXPECT_EQ(all[0].ranks(0), 2);
  EXPECT_EQ(all[0].outcome(), "");
  EXPECT_EQ(all[1].number(), all[0].number());
  EXPECT_EQ(all[1].outcome(), "over after 20.0s");
}

TEST_F(JobObserverTest, AStragglerEndsWithItsGeneration) {
  for (int second = 0; second <= 12; ++second) Report(second, 20000);
  ASSERT_EQ(observer_.incidents().last_number(), 1);
  Begin();
  const std::vector<v1::Incident> told = observer_.Advance(kStart + absl::Seconds(13), HostOf);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].number(), 1);
  EXPECT_EQ(told[0].outcome(), "its generation ended while it lasted");
}

// A coordinator that was started again reads the events of the one before: each as it was told.
TEST_F(JobObserverTest, RestoresIncidentsAndWhatIsOpen) {
  v1::Incident lost;
  lost.set_number(4);
  lost.set_kind(v1::Incident::LOST);
  observer_.Restore(lost, kStart);
  lost.set_outcome("generation 2 began after 1.2s");
  observer_.Restore(lost, kStart);
  v1::Incident open = lost;
  open.set_number(5);
  open.clear_outcome();
  observer_.Restore(open, kStart);
  EXPECT_EQ(observer_.incidents().Read(0, 10).incidents.size(), 2u);
  EXPECT_EQ(observer_.incidents().Find(4)->outcome(), "generation 2 began after 1.2s");
  const auto ended = observer_.EndLoss("generation 3 began", kStart + absl::Seconds(2));
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->number(), 5);
  EXPECT_EQ(ended->outcome(), "generation 3 began after 2.0s");
}

TEST_F(JobObserverTest, PositionsAreOfTheGeneration) {
  observer_.Position(1, At(v1::COMPUTING, 0, v1::FORWARD, 37), kStart);
  EXPECT_EQ(observer_.PositionOf(1, kStart),
            "computes on unit h.0 (forward) in step 12 for 0.0s, operation 37");
  Begin();
  EXPECT_EQ(observer_.PositionOf(1, kStart), "");
}

}  // namespace
}  // namespace tessera
