#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/grpc_status.h"
#include "common/simulated_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/v1/job_service.grpc.pb.h"
#include "tessera/v1/plan_service.grpc.pb.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers from a script. Each call of a method takes the next error, if there is one.
class FakeCoordinator final : public v1::JobService::Service, public v1::PlanService::Service {
 public:
  // On a port of its choice, or on one where another was.
  explicit FakeCoordinator(const std::string& address = "127.0.0.1:0") {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::PlanService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Set before the calls; read by them, one at a time.
  std::vector<absl::Status> errors;
  std::vector<std::string> request_ids;
  // All that there is to watch. A stream sends what comes after its token and ends with OK.
  std::vector<v1::WatchJobResponse> events;
  // But each of the first streams is cut after so many of them.
  struct Cut {
    size_t after = 0;
    grpc::Status status = ToGrpcStatus(absl::UnavailableError("draining"));
  };
  std::vector<Cut> cuts;
  std::vector<std::string> tokens;
  // Called at the beginning of each stream.
  std::function<void()> on_watch = [] {};
  int calls = 0;
  // Set once a watch stream of no events is open; such a stream lasts until it is cancelled.
  std::atomic<bool> watching = false;

 private:
  grpc::Status Next() {
    const size_t call = static_cast<size_t>(calls++);
    return call < errors.size() ? ToGrpcStatus(errors[call]) : grpc::Status::OK;
  }

  grpc::Status CreateJob(grpc::ServerContext*, const v1::CreateJobRequest* request,
                         v1::CreateJobResponse* response) override {
    request_ids.push_back(request->request_id());
    response->mutable_job()->set_name(request->spec().name());
    return Next();
  }

  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*,
                      v1::GetJobResponse*) override {
    return Next();
  }

  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*,
                         v1::CancelJobResponse* response) override {
    response->mutable_job()->set_state(v1::CANCELLED);
    return Next();
  }

  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    const int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    response->add_workers()->set_rank(page);
    if (page < 2) response->set_next_page_token(absl::StrCat(page + 1));
    return Next();
  }

  grpc::Status ListIncidents(grpc::ServerContext*, const v1::ListIncidentsRequest* request,
                             v1::ListIncidentsResponse* response) override {
    const int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    response->add_incidents()->set_number(page + 1);
    if (page < 2) response->set_next_page_token(absl::StrCat(page + 1));
    return Next();
  }

  grpc::Status GetPlan(grpc::ServerContext*, const v1::GetPlanRequest*,
                       v1::GetPlanResponse* response) override {
    response->mutable_plan()->set_model_name("m");
    response->set_unit_count(2);
    return Next();
  }

  grpc::Status ListPlanUnits(grpc::ServerContext*, const v1::ListPlanUnitsRequest* request,
                             v1::ListPlanUnitsResponse* response) override {
    const bool first = request->page_token().empty();
    response->add_units()->set_fqn(first ? "h.0" : "");
    response->add_layouts()->set_padded_numel(first ? 128 : 64);
    if (first) response->set_next_page_token("next");
    return Next();
  }

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    const int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    response->add_jobs()->set_name(absl::StrCat("job-", page));
    response->mutable_read_time()->set_seconds(page + 1);
    if (page < 2) response->set_next_page_token(absl::StrCat(page + 1));
    return Next();
  }

  grpc::Status DrainJob(grpc::ServerContext*, const v1::DrainJobRequest* request,
                        v1::DrainJobResponse* response) override {
    response->mutable_job()->set_name(request->name());
    response->mutable_job()->set_draining(true);
    return Next();
  }

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    on_watch();
    const size_t call = static_cast<size_t>(calls++);
    const std::string& token = request->resume_token();
    tokens.push_back(token);
    if (events.empty()) {
      writer->SendInitialMetadata();
      watching = true;
      watching.notify_all();
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
    const size_t begin = token.empty() ? 0 : static_cast<size_t>(std::stoi(token));
    if (!token.empty()) writer->Write({});
    const bool cut = call < cuts.size();
    const size_t end = cut ? std::min(begin + cuts[call].after, events.size()) : events.size();
    for (size_t i = begin; i < end; ++i) {
      v1::WatchJobResponse event = events[i];
      event.set_resume_token(absl::StrCat(i + 1));
      writer->Write(event);
    }
    return cut ? cuts[call].status : grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

const Client::Options kQuick = {.first_pause = absl::ZeroDuration()};

v1::WatchJobResponse JobEvent(v1::JobState state) {
  v1::WatchJobResponse event;
  event.mutable_job()->set_state(state);
  return event;
}

v1::WatchJobResponse StepEvent(int64_t step) {
  v1::WatchJobResponse event;
  event.mutable_progress()->set_step(step);
  return event;
}

TEST(ClientTest, RepeatsUnavailableCallsWithOneRequestId) {
  FakeCoordinator coordinator;
  coordinator.errors = {absl::UnavailableError("a"), absl::UnavailableError("b")};
  Client client(coordinator.address(), kQuick);
  v1::JobSpec spec;
  spec.set_name("gpt");
  const auto job = client.CreateJob(spec, /*validate_only=*/false);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name(), "gpt");
  ASSERT_EQ(coordinator.request_ids.size(), 3u);
  EXPECT_FALSE(coordinator.request_ids[0].empty());
  EXPECT_EQ(coordinator.request_ids[0], coordinator.request_ids[2]);
}

TEST(ClientTest, GivesUpAfterFiveAttempts) {
  FakeCoordinator coordinator;
  coordinator.errors.assign(9, absl::UnavailableError("draining"));
  const auto job = Client(coordinator.address(), kQuick).GetJob("gpt");
  EXPECT_TRUE(absl::IsUnavailable(job.status()));
  EXPECT_THAT(std::string(job.status().message()), HasSubstr(coordinator.address()));
  EXPECT_EQ(coordinator.calls, 5);
}

TEST(ClientTest, DoesNotRepeatOtherErrorsAndKeepsReasonAndField) {
  FakeCoordinator coordinator;
  coordinator.errors = {InvalidField("mesh.min_workers", "is 0; give at least 1"),
                        WithReason(absl::AlreadyExistsError("job gpt is live"), "JOB_EXISTS")};
  Client client(coordinator.address(), kQuick);
  const absl::Status first = client.CreateJob({}, false).status();
  EXPECT_EQ(first.message(), "mesh.min_workers: is 0; give at least 1");
  EXPECT_EQ(Field(first), "mesh.min_workers");
  const absl::Status second = client.CreateJob({}, false).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second));
  EXPECT_EQ(Reason(second), "JOB_EXISTS");
  EXPECT_EQ(coordinator.calls, 2);
}

TEST(ClientTest, CancelsOnceOnly) {
  FakeCoordinator coordinator;
  coordinator.errors = {absl::UnavailableError("draining")};
  Client client(coordinator.address(), kQuick);
  EXPECT_TRUE(absl::IsUnavailable(client.CancelJob("gpt", "").status()));
  EXPECT_EQ(coordinator.calls, 1);
}

TEST(ClientTest, CollectsAllPages) {
  FakeCoordinator coordinator;
  Client client(coordinator.address(), kQuick);
  const auto workers = client.ListWorkers("gpt");
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->size(), 3u);
  EXPECT_EQ((*workers)[2].rank(), 2);
  const auto incidents = client.ListIncidents("gpt");
  ASSERT_TRUE(incidents.ok()) << incidents.status();
  ASSERT_EQ(incidents->size(), 3u);
  EXPECT_EQ((*incidents)[2].number(), 3);
  const auto plan = client.GetPlan("gpt");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan().model_name(), "m");
  ASSERT_EQ(plan->plan().units_size(), 2);
  EXPECT_EQ(plan->plan().units(0).fqn(), "h.0");
  EXPECT_EQ(plan->layout().units(1).padded_numel(), 64);
}

TEST(ClientTest, ListsAllPagesAndDrains) {
  FakeCoordinator coordinator;
  coordinator.errors = {absl::UnavailableError("a")};
  Client client(coordinator.address(), kQuick);
  const auto jobs = client.ListJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->jobs_size(), 3);
  EXPECT_EQ(jobs->jobs(2).name(), "job-2");
  EXPECT_EQ(jobs->read_time().seconds(), 1);
  coordinator.errors = {};
  EXPECT_TRUE(client.DrainJob("gpt")->draining());
}

// A job's whole life.
std::vector<v1::WatchJobResponse> Life() {
  return {JobEvent(v1::FORMING), JobEvent(v1::RUNNING), StepEvent(20), StepEvent(20),
          JobEvent(v1::RUNNING), StepEvent(40),         StepEvent(60), JobEvent(v1::SUCCEEDED)};
}

struct Watched {
  absl::StatusOr<v1::Job> job = absl::UnknownError("not yet");
  std::vector<std::string> seen;
  std::vector<std::string> broken;
  int resumed = 0;
};

Watched Watch(
    const FakeCoordinator& coordinator, Client::Options options = kQuick,
    const std::function<void()>& on_resumed = [] {}) {
  Watched watched;
  WatchHandlers handlers;
  handlers.on_event = [&](const v1::WatchJobResponse& event) {
    watched.seen.push_back(event.has_job() ? v1::JobState_Name(event.job().state())
                                           : absl::StrCat(event.progress().step()));
  };
  handlers.on_broken = [&](const absl::Status& why, absl::Duration) {
    watched.broken.push_back(std::string(why.message()));
  };
  handlers.on_resumed = [&] {
    ++watched.resumed;
    on_resumed();
  };
  watched.job = Client(coordinator.address(), options).WatchJob("gpt", handlers);
  return watched;
}

// Events that look alike are events all the same: 20 and RUNNING come twice.
const std::vector<std::string> kWholeLife = {"FORMING", "RUNNING", "20", "20",
                                             "RUNNING", "40",      "60", "SUCCEEDED"};

TEST(ClientWatchTest, GoesOnAfterTheLastEventWhereverTheStreamIsCut) {
  for (size_t first = 1; first < Life().size(); ++first) {
    for (size_t second = 0; first + second < Life().size(); ++second) {
      FakeCoordinator coordinator;
      coordinator.events = Life();
      coordinator.cuts = {{.after = first}, {.after = second}};
      const Watched watched = Watch(coordinator);
      ASSERT_TRUE(watched.job.ok()) << watched.job.status();
      EXPECT_EQ(watched.job->state(), v1::SUCCEEDED);
      EXPECT_EQ(watched.seen, kWholeLife) << first << " " << second;
      EXPECT_THAT(coordinator.tokens,
                  ElementsAre("", absl::StrCat(first), absl::StrCat(first + second)));
      EXPECT_EQ(watched.broken.size(), 2u);
      EXPECT_EQ(watched.resumed, 2);
    }
  }
}

TEST(ClientWatchTest, GoesOnAfterWhatAProxyOrAResetMakesOfABrokenStream) {
  for (const grpc::StatusCode code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::INTERNAL,
                                      grpc::StatusCode::UNKNOWN, grpc::StatusCode::CANCELLED}) {
    FakeCoordinator coordinator;
    coordinator.events = Life();
    coordinator.cuts = {{.after = 3, .status = grpc::Status(code, "RST_STREAM")},
                        {.after = 0, .status = grpc::Status::OK}};
    const Watched watched = Watch(coordinator);
    EXPECT_TRUE(watched.job.ok()) << watched.job.status();
    EXPECT_EQ(watched.seen, kWholeLife) << code;
  }
}

TEST(ClientWatchTest, EndsWithWhatTheCoordinatorRefuses) {
  for (const absl::Status& refused :
       {absl::InternalError("a bug"), absl::NotFoundError("an older job of this name")}) {
    FakeCoordinator coordinator;
    coordinator.events = Life();
    coordinator.cuts = {{.after = 3}, {.after = 0, .status = ToGrpcStatus(refused)}};
    const Watched watched = Watch(coordinator);
    EXPECT_EQ(watched.job.status(), refused);
    EXPECT_THAT(watched.seen, ElementsAre("FORMING", "RUNNING", "20"));
  }
}

TEST(ClientWatchTest, GivesUpWhereNoStreamHasHeldForItsPatience) {
  FakeCoordinator coordinator;
  SimulatedClock clock;
  coordinator.events = Life();
  coordinator.cuts.assign(99, {.after = 0});
  coordinator.cuts[0].after = 1;
  coordinator.on_watch = [&] { clock.Advance(absl::Seconds(10)); };
  Client::Options options = kQuick;
  options.watch_patience = absl::Seconds(30);
  options.clock = &clock;
  const Watched watched = Watch(coordinator, options);
  EXPECT_TRUE(absl::IsUnavailable(watched.job.status())) << watched.job.status();
  // The first broke at 10 s; the others at 20, 30 and 40 s.
  EXPECT_EQ(coordinator.calls, 4);
}

TEST(ClientWatchTest, AStreamThatIsOpenForLongHasHeldThoughNothingHappened) {
  FakeCoordinator coordinator;
  SimulatedClock clock;
  coordinator.events = Life();
  coordinator.cuts.assign(9, {.after = 0});
  coordinator.cuts[0].after = 1;
  Client::Options options = kQuick;
  options.watch_patience = absl::Seconds(30);
  options.clock = &clock;
  const Watched watched = Watch(coordinator, options, [&] { clock.Advance(absl::Seconds(60)); });
  EXPECT_TRUE(watched.job.ok()) << watched.job.status();
  EXPECT_EQ(watched.seen, kWholeLife);
}

TEST(ClientWatchTest, GivesUpAfterFiveAttemptsWhereNobodyHasAnswered) {
  FakeCoordinator coordinator;
  coordinator.events = Life();
  coordinator.cuts.assign(9, {.after = 0});
  const Watched watched = Watch(coordinator);
  EXPECT_TRUE(absl::IsUnavailable(watched.job.status()));
  EXPECT_EQ(coordinator.calls, 5);
  EXPECT_TRUE(watched.broken.empty());
}

TEST(ClientTest, StopEndsAWatchAndLaterCallsButNotCancel) {
  FakeCoordinator coordinator;
  Client client(coordinator.address(), kQuick);
  absl::StatusOr<v1::Job> job = absl::UnknownError("not yet");
  std::jthread watch([&] { job = client.WatchJob("gpt", {.on_event = [](const auto&) {}}); });
  coordinator.watching.wait(false);
  client.Stop();
  watch.join();
  EXPECT_TRUE(absl::IsCancelled(job.status()));
  EXPECT_TRUE(absl::IsCancelled(client.GetJob("gpt").status()));
  EXPECT_TRUE(client.CancelJob("gpt", "").ok());
}

TEST(ClientTest, SaysPlainlyThatNobodyListens) {
  std::string address;
  {
    FakeCoordinator gone;
    address = gone.address();
  }
  const auto job = Client(address, kQuick).GetJob("gpt");
  EXPECT_EQ(job.status(),
            absl::UnavailableError(absl::StrCat("cannot reach the coordinator at ", address,
                                                ": connection refused; is it running?")));
}

// gRPC's own channel would not look again before its pause is over, nor while nobody waits.
TEST(ClientTest, FindsACoordinatorThatHasComeBackAtOnce) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const std::string address = coordinator->address();
  Client client(address, kQuick);
  ASSERT_TRUE(client.GetJob("gpt").ok());
  for (int i = 0; i < 3; ++i) {
    coordinator.reset();
    EXPECT_TRUE(absl::IsUnavailable(client.GetJob("gpt").status()));
    coordinator = std::make_unique<FakeCoordinator>(address);
    const auto job = client.GetJob("gpt");
    EXPECT_TRUE(job.ok()) << job.status();
  }
}

TEST(ClientWatchTest, SurvivesACoordinatorThatGoesAndComesBack) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const std::string address = coordinator->address();
  coordinator->events = Life();
  coordinator->cuts = {{.after = 3}};
  Client client(address, kQuick);
  WatchHandlers handlers;
  std::vector<std::string> seen;
  handlers.on_event = [&](const v1::WatchJobResponse& event) {
    seen.push_back(event.has_job() ? v1::JobState_Name(event.job().state())
                                   : absl::StrCat(event.progress().step()));
  };
  handlers.on_broken = [&](const absl::Status&, absl::Duration) {
    coordinator.reset();
    // As long as it is away.
    EXPECT_TRUE(absl::IsUnavailable(client.GetJob("gpt").status()));
    coordinator = std::make_unique<FakeCoordinator>(address);
    coordinator->events = Life();
  };
  const auto job = client.WatchJob("gpt", handlers);
  EXPECT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(seen, kWholeLife);
}

}  // namespace
}  // namespace tessera
