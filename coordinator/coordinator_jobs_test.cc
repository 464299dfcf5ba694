// Jobs, plans and stats, as operators see them.
#include <functional>
#include <memory>
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
  // And after another job has taken the name, whether that lives or has ended (found by simulation:
  // seeds 720 and 1294).
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(Create(Spec("gpt", 2, 2), "r3").ok());
  for (const bool ended : {false, true}) {
    if (ended) {
      ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
    }
    const auto late = Create(Spec("gpt", 2, 2), "r1");
    ASSERT_TRUE(late.ok()) << late.status();
    EXPECT_EQ(late->create_time().seconds(), first->create_time().seconds());
  }
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

// Names of all jobs, a page of `size` at a time; `between` is called between pages.
std::vector<std::string> ListInPages(
    Coordinator& coordinator, int size, const std::function<void()>& between = [] {}) {
  std::vector<std::string> names;
  v1::ListJobsRequest request;
  request.set_page_size(size);
  do {
    const auto page = coordinator.ListJobs(request);
    EXPECT_TRUE(page.ok()) << page.status();
    if (!page.ok()) break;
    EXPECT_LE(page->jobs_size(), size);
    for (const v1::Job& job : page->jobs()) names.push_back(job.name());
    request.set_page_token(page->next_page_token());
    between();
  } while (!request.page_token().empty());
  return names;
}

TEST_F(CoordinatorJobsTest, JobsAreListedNewestFirstWhateverBecameOfThem) {
  EXPECT_TRUE(ListInPages(coordinator_, 2).empty());
  StartGpt(1);
  for (const char* name : {"b", "a", "c"}) {
    clock_.Advance(absl::Seconds(10));
    ASSERT_TRUE(Create(Spec(name, 1, 1)).ok());
  }
  ASSERT_TRUE(coordinator_.CancelJob("a", "").ok());
  v1::ReportStatsRequest report = Report(0, 2);
  report.add_progress()->set_step(2);
  report.mutable_progress(0)->set_loss(2.5);
  ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  const auto all = coordinator_.ListJobs({});
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->jobs_size(), 4);
  EXPECT_EQ(all->next_page_token(), "");
  EXPECT_EQ(all->jobs(0).name(), "c");
  EXPECT_EQ(all->jobs(1).name(), "a");
  EXPECT_EQ(all->jobs(1).state(), v1::CANCELLED);
  EXPECT_FALSE(all->jobs(1).has_loss());
  EXPECT_EQ(all->jobs(3).name(), "gpt");
  EXPECT_EQ(all->jobs(3).state(), v1::RUNNING);
  EXPECT_EQ(all->jobs(3).step(), 2);
  EXPECT_EQ(all->jobs(3).loss(), 2.5);
  // Ages: 0 and 30 seconds.
  EXPECT_EQ(all->read_time().seconds(), all->jobs(0).create_time().seconds());
  EXPECT_EQ(all->read_time().seconds(), all->jobs(3).create_time().seconds() + 30);
  for (const int size : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(ListInPages(coordinator_, size), (std::vector<std::string>{"c", "a", "b", "gpt"}));
  }
}

TEST_F(CoordinatorJobsTest, APageIsStableWhileJobsComeAndGo) {
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(Create(Spec(name, 1, 1)).ok());
  int created = 0;
  const auto between = [&] {
    ASSERT_TRUE(Create(Spec(absl::StrCat("new-", created++), 1, 1)).ok());
    // Takes its name again: a new job that no later page has.
    ASSERT_TRUE(coordinator_.CancelJob("d", "").ok());
    ASSERT_TRUE(Create(Spec("d", 1, 1)).ok());
  };
  EXPECT_EQ(ListInPages(coordinator_, 1, between), (std::vector<std::string>{"d", "c", "b", "a"}));
}

TEST_F(CoordinatorJobsTest, RefusesAPageThatThereIsNot) {
  ASSERT_TRUE(Create(Spec("a", 1, 1)).ok());
  v1::ListJobsRequest request;
  request.set_page_size(-1);
  EXPECT_EQ(Field(coordinator_.ListJobs(request).status()), "page_size");
  request.set_page_size(1'000'000);
  EXPECT_TRUE(coordinator_.ListJobs(request).ok());
  for (const char* token : {"x", "0", "-1", "2", " 1", "01", "1.0", "99999999999999999999"}) {
    request.set_page_token(token);
    EXPECT_EQ(Field(coordinator_.ListJobs(request).status()), "page_token") << token;
  }
}

TEST_F(CoordinatorJobsTest, AJobKeepsItsLastEventsAndSaysHowManyAreGone) {
  Coordinator small({.clock = &clock_, .max_events = 2});
  v1::CreateJobRequest request;
  *request.mutable_spec() = Spec("gpt", 2, 2);
  ASSERT_TRUE(small.CreateJob(request).ok());
  v1::AttendRequest host;
  host.mutable_join_host()->set_host_name("node-a");
  host.mutable_join_host()->set_incarnation("a");
  host.mutable_join_host()->set_local_workers(2);
  ASSERT_TRUE(small.Join(host, std::make_shared<RecordingSink>()).ok());
  ASSERT_TRUE(small.CancelJob("gpt", "").ok());
  // Created, with a host, cancelled.
  const auto events = (*small.WatchJob("gpt"))->Read(0, 10).events;
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].missed(), 1);
  EXPECT_EQ(events[1].job().state(), v1::CANCELLED);
}

TEST_F(CoordinatorJobsTest, AWatcherOfAnOlderJobOfTheNameIsNotGivenTheNewOne) {
  ASSERT_TRUE(Create(Spec("gpt", 1, 1)).ok());
  const std::string token = (*coordinator_.WatchJob("gpt"))->Read(0, 1).events[0].resume_token();
  EXPECT_TRUE((*coordinator_.WatchJob("gpt"))->CursorOf(token).ok());
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "").ok());
  ASSERT_TRUE(Create(Spec("gpt", 1, 1)).ok());
  EXPECT_EQ((*coordinator_.WatchJob("gpt"))->CursorOf(token).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CoordinatorJobsTest, DrainTellsEveryRankOnceAndTheJobEndsWhenAllHaveStopped) {
  StartGpt(2);
  const auto draining = coordinator_.DrainJob("gpt");
  ASSERT_TRUE(draining.ok()) << draining.status();
  EXPECT_EQ(draining->state(), v1::RUNNING);
  EXPECT_TRUE(draining->draining());
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  for (const Member& rank : ranks_) EXPECT_EQ(rank.sink->drains, 1);
  EXPECT_EQ(agent_.sink->drains, 0);
  ASSERT_TRUE(coordinator_.ReportStats(Report(0, 3)).ok());
  Leave(ranks_[0]);
  EXPECT_EQ(Get("gpt").state(), v1::RUNNING);
  Leave(ranks_[1]);
  const v1::Job ended = Get("gpt");
  EXPECT_EQ(ended.state(), v1::CANCELLED);
  EXPECT_EQ(ended.reason_code(), "DRAINED");
  EXPECT_EQ(ended.reason(), "drained after step 3 of 5");
  EXPECT_EQ(agent_.sink->end->state(), v1::CANCELLED);
  // Once more: it is what was asked for.
  EXPECT_EQ(coordinator_.DrainJob("gpt")->state(), v1::CANCELLED);
  EXPECT_EQ(Trace(**coordinator_.WatchJob("gpt")),
            (std::vector<std::string>{"FORMING", "FORMING", "RUNNING", "RUNNING", "CANCELLED"}));
}

TEST_F(CoordinatorJobsTest, AJobThatFinishesWhileItIsDrainedHasSucceeded) {
  StartGpt(1);
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  ASSERT_TRUE(coordinator_.ReportStats(Report(0, 5)).ok());
  Leave(ranks_[0]);
  EXPECT_EQ(Get("gpt").state(), v1::SUCCEEDED);
  const auto again = coordinator_.DrainJob("gpt");
  EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(again.status().message(), "job gpt is SUCCEEDED"));
}

TEST_F(CoordinatorJobsTest, AJobThatIsFormingIsDrainedAtOnce) {
  ASSERT_TRUE(Create(Spec("gpt", 1, 1)).ok());
  const auto drained = coordinator_.DrainJob("gpt");
  ASSERT_TRUE(drained.ok());
  EXPECT_EQ(drained->state(), v1::CANCELLED);
  EXPECT_EQ(drained->reason_code(), "DRAINED");
  EXPECT_TRUE((*coordinator_.WatchJob("gpt"))->Read(0, 1000).end);
}

TEST_F(CoordinatorJobsTest, DrainingDoesNotStandInTheWayOfOtherEnds) {
  StartGpt(2);
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  Leave(ranks_[0], absl::StatusCode::kInternal, "out of luck");
  Pass(absl::Seconds(1), {agent_, ranks_[1]});
  EXPECT_EQ(Get("gpt").state(), v1::FAILED);
  EXPECT_EQ(coordinator_.DrainJob("gpt").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(coordinator_.DrainJob("none").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Create(Spec("other", 1, 1)).ok());
  ASSERT_TRUE(coordinator_.CancelJob("other", "").ok());
  EXPECT_TRUE(absl::StrContains(coordinator_.DrainJob("other").status().message(), "CANCELLED"));
}

// Time left of the newest line, in seconds; -1: none.
int64_t SecondsLeft(const EventLog& log) {
  const v1::Progress last = log.Read(0, 1000).events.back().progress();
  return last.has_time_left() ? last.time_left().seconds() : -1;
}

TEST_F(CoordinatorJobsTest, ProgressSaysHowLongTheRestTakes) {
  StartGpt(1);
  const auto report = [&](int64_t step) {
    v1::ReportStatsRequest request = Report(0, step);
    request.add_progress()->set_step(step);
    // What a worker says of it does not count.
    request.mutable_progress(0)->mutable_time_left()->set_seconds(99);
    ASSERT_TRUE(coordinator_.ReportStats(request).ok());
  };
  const auto events = *coordinator_.WatchJob("gpt");
  report(1);
  EXPECT_EQ(SecondsLeft(*events), -1);  // no time has passed
  clock_.Advance(absl::Seconds(8));
  report(2);  // of 5 steps: 4 seconds each
  EXPECT_EQ(SecondsLeft(*events), 12);
  clock_.Advance(absl::Seconds(12));
  report(4);
  EXPECT_EQ(SecondsLeft(*events), 5);
  clock_.Advance(absl::Seconds(5));
  report(5);
  EXPECT_EQ(SecondsLeft(*events), -1);
}

TEST_F(CoordinatorJobsTest, AJobThatIsDrainedHasNoTimeLeft) {
  StartGpt(1);
  ASSERT_TRUE(coordinator_.DrainJob("gpt").ok());
  clock_.Advance(absl::Seconds(8));
  v1::ReportStatsRequest report = Report(0, 2);
  report.add_progress()->set_step(2);
  ASSERT_TRUE(coordinator_.ReportStats(report).ok());
  EXPECT_EQ(SecondsLeft(**coordinator_.WatchJob("gpt")), -1);
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
