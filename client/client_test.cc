#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/grpc_status.h"
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
  FakeCoordinator() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::PlanService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Set before the calls; read by them, one at a time.
  std::vector<absl::Status> errors;
  std::vector<std::string> request_ids;
  // What each watch stream sends before it ends with UNAVAILABLE, or with OK for the last.
  std::vector<std::vector<v1::WatchJobResponse>> streams;
  int calls = 0;
  // Set once a watch stream that has no script is open; such a stream lasts until it is cancelled.
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

  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    const size_t call = static_cast<size_t>(calls++);
    if (call >= streams.size()) {
      writer->SendInitialMetadata();
      watching = true;
      watching.notify_all();
      while (!context->IsCancelled()) std::this_thread::yield();
      return grpc::Status::CANCELLED;
    }
    for (const v1::WatchJobResponse& event : streams[call]) writer->Write(event);
    return call + 1 < streams.size() ? ToGrpcStatus(absl::UnavailableError("draining"))
                                     : grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

constexpr Client::Options kQuick = {.first_pause = absl::ZeroDuration()};

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
  const auto plan = client.GetPlan("gpt");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->plan().model_name(), "m");
  ASSERT_EQ(plan->plan().units_size(), 2);
  EXPECT_EQ(plan->plan().units(0).fqn(), "h.0");
  EXPECT_EQ(plan->layout().units(1).padded_numel(), 64);
}

TEST(ClientTest, WatchReconnectsAndTellsEachEventOnce) {
  FakeCoordinator coordinator;
  coordinator.streams = {{JobEvent(v1::FORMING), JobEvent(v1::RUNNING), StepEvent(20)},
                         {},
                         {JobEvent(v1::FORMING), JobEvent(v1::RUNNING), StepEvent(20),
                          StepEvent(40), JobEvent(v1::SUCCEEDED)}};
  std::vector<std::string> seen;
  const auto job = Client(coordinator.address(), kQuick).WatchJob("gpt", [&](const auto& event) {
    seen.push_back(event.has_job() ? v1::JobState_Name(event.job().state())
                                   : absl::StrCat(event.progress().step()));
  });
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::SUCCEEDED);
  EXPECT_THAT(seen, ElementsAre("FORMING", "RUNNING", "20", "40", "SUCCEEDED"));
}

TEST(ClientTest, WatchGivesUpAfterFiveStreamsThatBringNothingNew) {
  FakeCoordinator coordinator;
  coordinator.streams.assign(9, {JobEvent(v1::RUNNING)});
  const auto job = Client(coordinator.address(), kQuick).WatchJob("gpt", [](const auto&) {});
  EXPECT_TRUE(absl::IsUnavailable(job.status()));
  // The first stream brought the state.
  EXPECT_EQ(coordinator.calls, 6);
}

TEST(ClientTest, StopEndsAWatchAndLaterCallsButNotCancel) {
  FakeCoordinator coordinator;
  Client client(coordinator.address(), kQuick);
  absl::StatusOr<v1::Job> job = absl::UnknownError("not yet");
  std::jthread watch([&] { job = client.WatchJob("gpt", [](const auto&) {}); });
  coordinator.watching.wait(false);
  client.Stop();
  watch.join();
  EXPECT_TRUE(absl::IsCancelled(job.status()));
  EXPECT_TRUE(absl::IsCancelled(client.GetJob("gpt").status()));
  EXPECT_TRUE(client.CancelJob("gpt", "").ok());
}

TEST(ClientTest, NamesAnAddressWhereNobodyListens) {
  std::string address;
  {
    FakeCoordinator gone;
    address = gone.address();
  }
  const auto job = Client(address, kQuick).GetJob("gpt");
  EXPECT_TRUE(absl::IsUnavailable(job.status())) << job.status();
  EXPECT_THAT(std::string(job.status().message()), HasSubstr(address));
}

}  // namespace
}  // namespace tessera
