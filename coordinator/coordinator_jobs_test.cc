// Jobs, plans and stats, as operators see them.
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

using CoordinatorJobsTest = CoordinatorFixture;

std::vector<std::string> Trace(const EventLog& log) {
  std::vector<std::string> trace;
  for (const v1::WatchJobResponse& event : log.Read(0, 1000).events) {
    trace.push_back(event.has_job() ? v1::JobState_Name(event.job().state())
                                    : absl::StrCat("step ", event.progress().step()));
  }
  return trace;
}

v1::ReportStatsRequest Report(int rank, int64_t step) {
  v1::ReportStatsRequest report;
  report.set_job("gpt");
  report.set_generation(1);
  report.set_rank(rank);
  report.set_incarnation(absl::StrCat("i", rank));
  report.set_step(step);
  return report;
}

TEST_F(CoordinatorJobsTest, ACreatedJobIsFormingAndShowsItsDefaults) {
  const auto created = Create(Spec("gpt", 2, 2));
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->name(), "gpt");
  EXPECT_EQ(created->state(), v1::FORMING);
  EXPECT_EQ(created->steps(), 5);
  EXPECT_EQ(created->generation(), 0);
  EXPECT_FALSE(created->has_failed_rank());
  const auto got = coordinator_.GetJob("gpt");
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->spec().optimizer().name(), "adamw");
  EXPECT_EQ(got->spec().timeouts().lease().seconds(), 5);
}

TEST_F(CoordinatorJobsTest, ValidateOnlyChecksAndCreatesNothing) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = Spec("gpt", 2, 2);
  request.set_validate_only(true);
  const auto checked = coordinator_.CreateJob(request);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->state(), v1::DRAFT);
  EXPECT_EQ(coordinator_.GetJob("gpt").status().code(), absl::StatusCode::kNotFound);
  request.mutable_spec()->mutable_mesh()->set_min_workers(0);
  EXPECT_EQ(Field(coordinator_.CreateJob(request).status()), "mesh.min_workers");
}

TEST_F(CoordinatorJobsTest, AWrongSpecLeavesNothingBehind) {
  v1::JobSpec spec = Spec("gpt", 2, 2);
  spec.mutable_optimizer()->set_name("adagrad");
  const auto created = Create(spec);
  EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Field(created.status()), "optimizer.name");
  EXPECT_EQ(coordinator_.GetJob("gpt").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorJobsTest, NamesOfLiveJobsAreUniqueAndThoseOfEndedOnesFree) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  const auto second = Create(Spec("gpt", 2, 2));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(second.status().message(), "FORMING")) << second.status();
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  ASSERT_TRUE(Create(Spec("gpt", 1, 1)).ok());
  EXPECT_EQ(Get("gpt").state(), v1::FORMING);
  // Nothing of the first job is left: not its members, nor its stats.
  EXPECT_EQ(coordinator_.GetStats("gpt")->ranks_size(), 0);
}

TEST_F(CoordinatorJobsTest, ARequestIdCreatesOnce) {
  const auto first = Create(Spec("gpt", 2, 2), "r1");
  ASSERT_TRUE(first.ok());
  const auto again = Create(Spec("gpt", 2, 2), "r1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->create_time().seconds(), first->create_time().seconds());
  EXPECT_EQ(Create(Spec("gpt", 2, 2), "r2").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Field(Create(Spec("other", 2, 2), "r1").status()), "request_id");
  // Also after the job has ended: a late retry must not start it again.
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  EXPECT_EQ(Create(Spec("gpt", 2, 2), "r1")->state(), v1::CANCELLED);
}

TEST_F(CoordinatorJobsTest, CancelTellsEveryMemberAndIsFinal) {
  StartGpt(2);
  const auto cancelled = coordinator_.CancelJob("gpt", "Ctrl-C");
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->state(), v1::CANCELLED);
  EXPECT_EQ(cancelled->reason(), "Ctrl-C");
  EXPECT_EQ(cancelled->reason_code(), "CANCELLED");
  for (const Member& member : {agent_, ranks_[0], ranks_[1]}) {
    ASSERT_TRUE(member.sink->end.has_value());
    EXPECT_EQ(member.sink->end->state(), v1::CANCELLED);
    EXPECT_EQ(member.sink->end->reason(), "Ctrl-C");
  }
  EXPECT_EQ(coordinator_.CancelJob("gpt", "again")->reason(), "Ctrl-C");
  EXPECT_EQ(coordinator_.CancelJob("none", "").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorJobsTest, WatchersSeeStatesAndProgressInOrderUntilTheEnd) {
  StartGpt(1);
  const auto events = coordinator_.WatchJob("gpt");
  ASSERT_TRUE(events.ok());
  v1::ReportStatsRequest report = Report(0, 2);
  report.add_progress()->set_step(1);
  report.add_progress()->set_step(2);
  ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  // Sent again, as after a deadline that passed on the way back.
  ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  EXPECT_FALSE((*events)->Read(0, 1000).end);
  Leave(ranks_[0]);
  // FORMING is seen when created and when a host was found.
  EXPECT_EQ(Trace(**events), (std::vector<std::string>{"FORMING", "FORMING", "RUNNING", "step 1",
                                                       "step 2", "SUCCEEDED"}));
  EXPECT_TRUE((*events)->Read(0, 1000).end);
}

TEST_F(CoordinatorJobsTest, StatsShowProcessesBytesAndTimes) {
  StartGpt(2);
  for (int rank = 0; rank < 2; ++rank) {
    v1::ReportStatsRequest report = Report(rank, 3);
    report.set_measured_bytes(4096 * (rank + 1));
    v1::OperationSample* sample = report.add_samples();
    sample->set_unit(0);
    sample->set_operation(v1::UNSHARD);
    sample->set_count(6);
    sample->set_median_us(3.0 + rank);
    ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  }
  const auto stats = coordinator_.GetStats("gpt");
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->state(), v1::RUNNING);
  EXPECT_EQ(stats->step(), 3);
  ASSERT_EQ(stats->ranks_size(), 2);
  EXPECT_EQ(stats->ranks(1).pid(), 101);
  EXPECT_EQ(stats->ranks(1).measured_bytes(), 8192);
  const auto plan = coordinator_.GetPlan("gpt");
  EXPECT_EQ(stats->ranks(1).forecast_bytes(),
            plan->forecast().ranks(1).mapped_bytes() + plan->forecast().hosts(0).mapped_bytes());
  // One block and the root.
  ASSERT_EQ(stats->units_size(), 2);
  EXPECT_EQ(stats->units(0).fqn(), "h.0");
  EXPECT_EQ(stats->units(0).param_dtype(), v1::FLOAT32);
  const auto page = coordinator_.ListPlanUnits([] {
    v1::ListPlanUnitsRequest request;
    request.set_job("gpt");
    return request;
  }());
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(stats->units(0).sharded_bytes(), 4 * page->layouts(0).shard_numel());
  EXPECT_EQ(stats->units(0).unsharded_bytes(), 4 * page->layouts(0).padded_numel());
  ASSERT_EQ(stats->units(0).operations_size(), 1);
  EXPECT_EQ(stats->units(0).operations(0).median_us(), 3.5);
  EXPECT_EQ(stats->units(0).operations(0).slowest_rank(), 1);
  EXPECT_EQ(Get("gpt").step(), 3);
}

TEST_F(CoordinatorJobsTest, ReportsOfOtherGenerationsAndIncarnationsAreStale) {
  StartGpt(1);
  v1::ReportStatsRequest report = Report(0, 1);
  report.set_generation(2);
  EXPECT_EQ(Reason(coordinator_.ReportStats(report)), "STALE_GENERATION");
  report = Report(0, 1);
  report.set_incarnation("other");
  EXPECT_EQ(Reason(coordinator_.ReportStats(report)), "STALE_GENERATION");
  EXPECT_EQ(Field(coordinator_.ReportStats(Report(0, 6))), "step");
  report = Report(0, 1);
  report.set_job("none");
  EXPECT_EQ(coordinator_.ReportStats(report).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  EXPECT_EQ(Reason(coordinator_.ReportStats(Report(0, 1))), "STALE_GENERATION");
}

TEST_F(CoordinatorJobsTest, UnitsAreListedForThePresentGenerationOnly) {
  StartGpt(2);
  v1::ListUnitsRequest request;
  request.set_job("gpt");
  request.set_generation(1);
  const auto page = coordinator_.ListUnits(request);
  ASSERT_TRUE(page.ok()) << page.status();
  v1::ListUnitsResponse units;
  ASSERT_TRUE(units.ParseFromString(**page));
  EXPECT_EQ(units.units_size(), 2);
  EXPECT_EQ(units.layouts_size(), 2);
  request.set_generation(2);
  EXPECT_EQ(Reason(coordinator_.ListUnits(request).status()), "STALE_GENERATION");
}

TEST_F(CoordinatorJobsTest, WorkersAreListedInPages) {
  StartGpt(3);
  v1::ListWorkersRequest request;
  request.set_job("gpt");
  request.set_page_size(2);
  auto page = coordinator_.ListWorkers(request);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->workers_size(), 2);
  EXPECT_EQ(page->workers(1).rank(), 1);
  EXPECT_EQ(page->workers(1).pid(), 101);
  EXPECT_EQ(page->workers(1).host_name(), "node-a");
  EXPECT_EQ(page->workers(1).state(), "READY");
  request.set_page_token(page->next_page_token());
  page = coordinator_.ListWorkers(request);
  ASSERT_EQ(page->workers_size(), 1);
  EXPECT_EQ(page->workers(0).rank(), 2);
  EXPECT_EQ(page->next_page_token(), "");
  request.set_page_token("x");
  EXPECT_EQ(Field(coordinator_.ListWorkers(request).status()), "page_token");
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  request.clear_page_token();
  EXPECT_EQ(coordinator_.ListWorkers(request)->workers(0).state(), "GONE");
}

TEST_F(CoordinatorJobsTest, PlansAreShownForTheLargestWorldUntilTheJobHasFormed) {
  ASSERT_TRUE(Create(Spec("gpt", 1, 4)).ok());
  EXPECT_EQ(coordinator_.GetPlan("gpt")->layout().world_size(), 4);
  JoinHost("node-a", 2, "gpt");
  EXPECT_EQ(coordinator_.GetPlan("gpt")->layout().world_size(), 2);
  EXPECT_EQ(Get("gpt").world_size(), 2);
}

TEST_F(CoordinatorJobsTest, CreatePlanPlansWithoutAJob) {
  v1::CreatePlanRequest request;
  *request.mutable_spec() = Spec("gpt", 2, 4);
  EXPECT_EQ(coordinator_.CreatePlan(request)->layout().world_size(), 4);
  request.set_world_size(3);
  EXPECT_EQ(coordinator_.CreatePlan(request)->layout().world_size(), 3);
  request.set_world_size(-1);
  EXPECT_EQ(Field(coordinator_.CreatePlan(request).status()), "world_size");
  EXPECT_EQ(coordinator_.GetPlan("gpt").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorJobsTest, OnlyTheLastEndedJobsAreKept) {
  Coordinator small({.clock = &clock_, .max_live_jobs = 2, .max_ended_jobs = 2});
  v1::CreateJobRequest request;
  for (const std::string name : {"a", "b", "c"}) {
    *request.mutable_spec() = Spec(name, 1, 1);
    ASSERT_TRUE(small.CreateJob(request).ok());
    ASSERT_TRUE(small.CancelJob(name, "").ok());
  }
  EXPECT_EQ(small.GetJob("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(small.GetJob("b").ok());
  EXPECT_TRUE(small.GetJob("c").ok());
  for (const std::string name : {"d", "e"}) {
    *request.mutable_spec() = Spec(name, 1, 1);
    ASSERT_TRUE(small.CreateJob(request).ok());
  }
  *request.mutable_spec() = Spec("f", 1, 1);
  EXPECT_EQ(small.CreateJob(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CoordinatorJobsTest, ShutdownTellsEverybodyAndRefusesWhatIsNew) {
  StartGpt(1);
  const Member waiting = JoinHost("node-b", 1, "");
  const auto events = coordinator_.WatchJob("gpt");
  coordinator_.Shutdown();
  EXPECT_EQ(Get("gpt").state(), v1::CANCELLED);
  EXPECT_EQ(Get("gpt").reason_code(), "UNAVAILABLE");
  EXPECT_EQ(ranks_[0].sink->end->state(), v1::CANCELLED);
  EXPECT_EQ(ranks_[0].sink->closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting.sink->closed->code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE((*events)->Read(0, 1000).end);
  absl::Status status;
  JoinHost("node-c", 1, "", &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Create(Spec("late", 1, 1)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tessera
