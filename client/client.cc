#include "client/client.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client_impl.h"
#include "client/connection_error.h"
#include "common/errors.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Of one attempt of a call. Planning a large model is the slowest.
constexpr absl::Duration kCallDeadline = absl::Seconds(30);
constexpr absl::Duration kCancelDeadline = absl::Seconds(2);

// So that a call can be repeated and acts once.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

}  // namespace

Client::Impl::Connection::Connection(const std::string& coordinator)
    : channel(MakeChannel(coordinator, {.own_connection = true})),
      jobs(v1::JobService::NewStub(channel)),
      plans(v1::PlanService::NewStub(channel)),
      stats(v1::StatsService::NewStub(channel)) {}

absl::Duration Client::Impl::CallDeadline() { return kCallDeadline; }

absl::Status Client::Impl::Stopped() { return absl::CancelledError("the call was stopped"); }

bool Client::Impl::IsTransport(const grpc::Status& status) {
  return !status.ok() && status.error_details().empty();
}

std::shared_ptr<const Client::Impl::Connection> Client::Impl::Connect() {
  {
    MutexLock lock(mutex_);
    if (connection_ != nullptr) return connection_;
  }
  auto connection = std::make_shared<const Connection>(coordinator_);
  MutexLock lock(mutex_);
  if (connection_ == nullptr) connection_ = std::move(connection);
  return connection_;
}

absl::Status Client::Impl::Result(const grpc::Status& status,
                                  const std::shared_ptr<const Connection>& connection,
                                  absl::Duration deadline) {
  const absl::Status error = FromGrpcStatus(status);
  if (!IsTransport(status)) {
    return absl::IsUnavailable(error) ? Annotate(error, absl::StrCat("coordinator ", coordinator_))
                                      : error;
  }
  {
    MutexLock lock(mutex_);
    if (connection_ == connection) connection_ = nullptr;
  }
  return ExplainConnection(error, coordinator_, deadline);
}

bool Client::Impl::Register(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  if (!stopped_) active_.insert(context);
  return !stopped_;
}

bool Client::Impl::Unregister(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  active_.erase(context);
  return !stopped_;
}

bool Client::Impl::Pause(absl::Duration pause) {
  const absl::Time until = absl::Now() + pause;
  MutexLock lock(mutex_);
  while (!stopped_ && absl::Now() < until) stop_.WaitFor(lock, until - absl::Now());
  return !stopped_;
}

bool Client::Impl::stopped() {
  MutexLock lock(mutex_);
  return stopped_;
}

void Client::Impl::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  // Does not wait; under the lock because the contexts are their callers' and go with them.
  for (grpc::ClientContext* context : active_) context->TryCancel();
  stop_.NotifyAll();
}

Client::Client(const std::string& coordinator, Options options)
    : impl_(std::make_unique<Impl>(coordinator, options)) {}
Client::~Client() = default;

void Client::Stop() { impl_->Stop(); }

absl::StatusOr<v1::Job> Client::CreateJob(const v1::JobSpec& spec, bool validate_only) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(validate_only);
  request.set_request_id(NewRequestId());
  v1::CreateJobResponse response;
  TESSERA_RETURN_IF_ERROR(
      impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.jobs->CreateJob(&context, request, &response);
      }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  TESSERA_RETURN_IF_ERROR(
      impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.jobs->GetJob(&context, request, &response);
      }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs() {
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  do {
    v1::ListJobsResponse page;
    TESSERA_RETURN_IF_ERROR(
        impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
          return to.jobs->ListJobs(&context, request, &page);
        }));
    if (!all.has_read_time()) *all.mutable_read_time() = page.read_time();
    all.mutable_jobs()->MergeFrom(page.jobs());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return all;
}

absl::StatusOr<v1::Job> Client::WatchJob(const std::string& name, const WatchHandlers& handlers) {
  return impl_->Watch(name, handlers);
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& name, const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_request_id(NewRequestId());
  request.set_reason(reason);
  v1::CancelJobResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Attempt(
      [&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.jobs->CancelJob(&context, request, &response);
      },
      kCancelDeadline, /*interruptible=*/false));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::DrainJob(const std::string& name) {
  v1::DrainJobRequest request;
  request.set_name(name);
  request.set_request_id(NewRequestId());
  v1::DrainJobResponse response;
  TESSERA_RETURN_IF_ERROR(
      impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.jobs->DrainJob(&context, request, &response);
      }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::CreatePlanResponse> Client::GetPlan(const std::string& job) {
  v1::GetPlanRequest request;
  request.set_job(job);
  v1::GetPlanResponse response;
  TESSERA_RETURN_IF_ERROR(
      impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.plans->GetPlan(&context, request, &response);
      }));
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(response.mutable_plan());
  plan.mutable_layout()->Swap(response.mutable_layout());
  plan.mutable_forecast()->Swap(response.mutable_forecast());
  v1::ListPlanUnitsRequest page;
  page.set_job(job);
  do {
    v1::ListPlanUnitsResponse units;
    TESSERA_RETURN_IF_ERROR(
        impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
          return to.plans->ListPlanUnits(&context, page, &units);
        }));
    if (units.units_size() != units.layouts_size()) {
      return absl::InternalError(absl::StrCat(
          "the coordinator listed ", units.units_size(), " units and ", units.layouts_size(),
          " layouts; client and coordinator are of different builds"));
    }
    plan.mutable_plan()->mutable_units()->MergeFrom(units.units());
    plan.mutable_layout()->mutable_units()->MergeFrom(units.layouts());
    page.set_page_token(units.next_page_token());
  } while (!page.page_token().empty());
  return plan;
}

absl::StatusOr<v1::JobStats> Client::GetStats(const std::string& job) {
  v1::GetStatsRequest request;
  request.set_job(job);
  v1::GetStatsResponse response;
  TESSERA_RETURN_IF_ERROR(
      impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
        return to.stats->GetStats(&context, request, &response);
      }));
  return std::move(*response.mutable_stats());
}

absl::StatusOr<std::vector<v1::Worker>> Client::ListWorkers(const std::string& job) {
  std::vector<v1::Worker> workers;
  v1::ListWorkersRequest request;
  request.set_job(job);
  do {
    v1::ListWorkersResponse response;
    TESSERA_RETURN_IF_ERROR(
        impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
          return to.jobs->ListWorkers(&context, request, &response);
        }));
    for (v1::Worker& worker : *response.mutable_workers()) workers.push_back(std::move(worker));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return workers;
}

absl::StatusOr<std::vector<v1::Incident>> Client::ListIncidents(const std::string& job) {
  std::vector<v1::Incident> incidents;
  v1::ListIncidentsRequest request;
  request.set_job(job);
  do {
    v1::ListIncidentsResponse response;
    TESSERA_RETURN_IF_ERROR(
        impl_->Call([&](const Impl::Connection& to, grpc::ClientContext& context) {
          return to.jobs->ListIncidents(&context, request, &response);
        }));
    for (v1::Incident& incident : *response.mutable_incidents())
      incidents.push_back(std::move(incident));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return incidents;
}

}  // namespace tessera
