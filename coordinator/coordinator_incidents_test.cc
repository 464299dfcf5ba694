// Positions and incidents through the facade.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorIncidentsTest : public CoordinatorFixture {
 protected:
  void Say(const Member& member, v1::Activity activity, int unit, v1::Operation operation,
           int64_t sequence) {
    v1::AttendRequest request;
    v1::Position* position = request.mutable_heartbeat()->mutable_position();
    position->set_step(3);
    position->set_activity(activity);
    position->set_unit(unit);
    position->set_operation(operation);
    position->set_sequence(sequence);
    EXPECT_TRUE(coordinator_.Receive(member.id, request).ok());
  }

  v1::ListIncidentsResponse Incidents(int page_size = 0, const std::string& token = "") {
    v1::ListIncidentsRequest request;
    request.set_job("gpt");
    request.set_page_size(page_size);
    request.set_page_token(token);
    const auto response = coordinator_.ListIncidents(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? *response : v1::ListIncidentsResponse();
  }

  std::string PositionOf(int rank) {
    v1::ListWorkersRequest request;
    request.set_job("gpt");
    const auto workers = coordinator_.ListWorkers(request);
    EXPECT_TRUE(workers.ok()) << workers.status();
    return workers.ok() ? workers->workers(rank).position() : "";
  }

  // Incident events of the job, as a watcher reads them.
  std::vector<v1::Incident> Watched() {
    const auto events = coordinator_.WatchJob("gpt");
    EXPECT_TRUE(events.ok());
    std::vector<v1::Incident> incidents;
    for (const v1::WatchJobResponse& event : (*events)->Read(0, 1000).events) {
      if (event.has_incident()) incidents.push_back(event.incident());
    }
    return incidents;
  }
};

TEST_F(CoordinatorIncidentsTest, WorkersShowTheNewestPosition) {
  StartGpt(2);
  EXPECT_EQ(PositionOf(0), "");
  Say(ranks_[0], v1::COMPUTING, 0, v1::FORWARD, 5);
  Say(ranks_[0], v1::WAITING, 0, v1::REDUCE, 9);
  EXPECT_EQ(PositionOf(0), "waits in reduce of unit h.0 in step 3 for 0.0s, operation 9");
  EXPECT_EQ(PositionOf(1), "");
}

// What SIGSTOP does to a rank: its host lives, the others wait.
TEST_F(CoordinatorIncidentsTest, AStoppedRankIsNamedWithThePlaceWhereTheOthersWait) {
  StartGpt(3);
  Say(ranks_[1], v1::COMPUTING, 0, v1::FORWARD, 5);
  for (int i = 0; i < 60 && Get("gpt").state() == v1::RUNNING; ++i) {
    for (const int rank : {0, 2}) Say(ranks_[rank], v1::WAITING, 0, v1::REDUCE, 9);
    Pass(absl::Milliseconds(100), {agent_});
  }
  const v1::Job job = Get("gpt");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.failed_rank(), 1);
  EXPECT_TRUE(absl::StrContains(job.reason(), "rank 1 on host node-a is lost: not heard of for 5s"))
      << job.reason();
  EXPECT_TRUE(absl::StrContains(job.reason(), "rank 1 computes on unit h.0 (forward) in step 3"));
  EXPECT_TRUE(absl::StrContains(job.reason(), "ranks 0, 2 have waited"));
  EXPECT_TRUE(absl::StrContains(job.reason(), "in reduce of unit h.0 (operation 9)"));
  const v1::ListIncidentsResponse incidents = Incidents();
  ASSERT_EQ(incidents.incidents_size(), 1);
  const v1::Incident& incident = incidents.incidents(0);
  EXPECT_EQ(incident.number(), 1);
  EXPECT_EQ(incident.kind(), v1::Incident::STUCK);
  EXPECT_EQ(incident.generation(), 1);
  EXPECT_EQ(incident.message(), job.reason());
  EXPECT_EQ(incident.unit(), "h.0");
  EXPECT_EQ(incident.operation(), "REDUCE");
  EXPECT_EQ(incident.host_name(), "node-a");
  EXPECT_EQ(incident.positions_size(), 3);
  EXPECT_EQ(incident.outcome(), "the job FAILED after 0.0s");
  EXPECT_TRUE(incident.has_time());
}

// The others' deadline: they leave and blame it, while it still sends heartbeats.
TEST_F(CoordinatorIncidentsTest, ARankThatLivesButDoesNotComeIsNamedAtTheDeadline) {
  StartGpt(2);
  Say(ranks_[1], v1::COMPUTING, 1, v1::BACKWARD, 7);
  Say(ranks_[0], v1::WAITING, 0, v1::UNSHARD, 8);
  Pass(absl::Seconds(30), {agent_, ranks_[1], ranks_[0]});
  Say(ranks_[1], v1::COMPUTING, 1, v1::BACKWARD, 7);
  Say(ranks_[0], v1::WAITING, 0, v1::UNSHARD, 8);
  Leave(ranks_[0], absl::StatusCode::kDeadlineExceeded, "waited 30s for unshard of unit h.0", 1);
  Pass(absl::Milliseconds(400), {agent_, ranks_[1]});
  const v1::Job job = Get("gpt");
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_TRUE(
      absl::StrContains(job.reason(), "waited 30s for unshard of unit h.0; rank 1 computes"))
      << job.reason();
  EXPECT_EQ(Incidents().incidents(0).kind(), v1::Incident::STUCK);
}

TEST_F(CoordinatorIncidentsTest, WatchersAreToldOfAnIncidentAndOfItsOutcome) {
  StartGpt(2);
  WorkerExited(agent_, 1, 0, 9);
  Pass(absl::Milliseconds(400), {agent_, ranks_[0]});
  const std::vector<v1::Incident> watched = Watched();
  ASSERT_EQ(watched.size(), 2u);
  EXPECT_EQ(watched[0].kind(), v1::Incident::LOST);
  EXPECT_EQ(watched[0].outcome(), "");
  EXPECT_EQ(watched[1].number(), 1);
  EXPECT_EQ(watched[1].outcome(), "the job FAILED after 0.0s");
  EXPECT_EQ(Incidents().incidents(0).outcome(), "the job FAILED after 0.0s");
}

TEST_F(CoordinatorIncidentsTest, StragglersAreNotedWhileTheJobRuns) {
  v1::JobSpec spec = Spec("gpt", 2, 2);
  spec.set_steps(1000);
  ASSERT_TRUE(Create(spec).ok());
  agent_ = JoinHost("node-a", 2, "gpt");
  for (int rank = 0; rank < 2; ++rank) ranks_.push_back(JoinRank("gpt", 1, rank));
  for (const Member& rank : ranks_) Ready(rank);
  double totals[2] = {};
  for (int second = 0; second <= 15; ++second) {
    for (int rank = 0; rank < 2; ++rank) {
      totals[rank] += rank == 1 ? 500'000 : 100'000;
      v1::ReportStatsRequest report;
      report.set_job("gpt");
      report.set_generation(1);
      report.set_rank(rank);
      report.set_incarnation(absl::StrCat("i", rank));
      report.set_step(second);
      v1::OperationSample* sample = report.add_samples();
      sample->set_unit(0);
      sample->set_operation(v1::BACKWARD);
      sample->set_count(second + 1);
      sample->set_total_us(totals[rank]);
      EXPECT_TRUE(coordinator_.ReportStats(report).ok());
    }
    Pass(absl::Seconds(1), {agent_, ranks_[0], ranks_[1]});
  }
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  const v1::ListIncidentsResponse incidents = Incidents();
  ASSERT_EQ(incidents.incidents_size(), 1);
  EXPECT_EQ(incidents.incidents(0).kind(), v1::Incident::STRAGGLER);
  EXPECT_EQ(incidents.incidents(0).ranks(0), 1);
  EXPECT_EQ(incidents.incidents(0).unit(), "h.0");
  EXPECT_EQ(incidents.incidents(0).operation(), "BACKWARD");
  EXPECT_GE(incidents.incidents(0).step(), 10);
  ASSERT_EQ(Watched().size(), 1u);
}

TEST_F(CoordinatorIncidentsTest, ListsInPages) {
  StartGpt(2);
  WorkerExited(agent_, 1, 0, 9);
  Pass(absl::Milliseconds(400), {agent_, ranks_[0]});
  EXPECT_EQ(Incidents(1).incidents_size(), 1);
  EXPECT_EQ(Incidents(1).next_page_token(), "");
  EXPECT_EQ(Incidents(1, "1").incidents_size(), 0);
  EXPECT_EQ(Incidents(2000).incidents_size(), 1);
}

TEST_F(CoordinatorIncidentsTest, RefusesWhatIsNoPageAndNoJob) {
  StartGpt(2);
  v1::ListIncidentsRequest request;
  request.set_job("gpt");
  for (const char* token : {"x", "0", "-1", "1x"}) {
    request.set_page_token(token);
    EXPECT_EQ(Field(coordinator_.ListIncidents(request).status()), "page_token") << token;
  }
  request.set_page_token("");
  request.set_page_size(-1);
  EXPECT_EQ(Field(coordinator_.ListIncidents(request).status()), "page_size");
  request.set_page_size(0);
  request.set_job("other");
  EXPECT_TRUE(absl::IsNotFound(coordinator_.ListIncidents(request).status()));
}

}  // namespace
}  // namespace tessera
