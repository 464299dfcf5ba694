#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/errors.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "tessera/v1/job_service.grpc.pb.h"
#include "tessera/v1/plan_service.grpc.pb.h"
#include "tessera/v1/stats_service.grpc.pb.h"

namespace tessera {
namespace {

constexpr int kAttempts = 5;
// Of one attempt of a call. Planning a large model is the slowest.
constexpr absl::Duration kCallDeadline = absl::Seconds(30);
constexpr absl::Duration kCancelDeadline = absl::Seconds(2);
// A watch that has lasted for so long is opened again: a deadline even where a peer vanished
// without a word.
constexpr absl::Duration kWatchDeadline = absl::Minutes(10);

// So that CreateJob can be repeated without creating two jobs.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::SUCCEEDED || job.state() == v1::FAILED || job.state() == v1::CANCELLED;
}

// Leaves out what an earlier stream of the same watch has already brought: a new one starts from
// the job's beginning.
class SeenEvents {
 public:
  bool IsNew(const v1::WatchJobResponse& event) {
    if (event.has_progress()) {
      if (event.progress().step() <= last_step_) return false;
      last_step_ = event.progress().step();
      return true;
    }
    return jobs_
        .insert(absl::StrCat(event.job().state(), "/", event.job().generation(), "/",
                             event.job().reason()))
        .second;
  }

 private:
  int64_t last_step_ = 0;
  std::set<std::string> jobs_;
};

}  // namespace

class Client::Impl {
 public:
  Impl(const std::string& coordinator, Options options)
      : coordinator_(coordinator),
        first_pause_(options.first_pause),
        channel_(MakeChannel(coordinator)),
        jobs_(v1::JobService::NewStub(channel_)),
        plans_(v1::PlanService::NewStub(channel_)),
        stats_(v1::StatsService::NewStub(channel_)) {}

  // One attempt. `interruptible`: Stop ends it.
  template <typename Method>
  absl::Status Attempt(const Method& method, absl::Duration deadline, bool interruptible) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    if (interruptible && !Register(&context)) return Stopped();
    const grpc::Status status = method(context);
    if (interruptible && !Unregister(&context)) return Stopped();
    return Annotated(FromGrpcStatus(status));
  }

  // `method(context)` makes one idempotent call and returns its grpc::Status.
  template <typename Method>
  absl::Status Call(const Method& method) {
    absl::Status status;
    absl::Duration pause = first_pause_;
    for (int attempt = 1;; ++attempt) {
      status = Attempt(method, kCallDeadline, /*interruptible=*/true);
      if (!absl::IsUnavailable(status) || attempt == kAttempts) return status;
      if (!Pause(pause)) return Stopped();
      pause *= 2;
    }
  }

  absl::StatusOr<v1::Job> Watch(const std::string& name,
                                const std::function<void(const v1::WatchJobResponse&)>& on_event);

  void Stop() {
    MutexLock lock(mutex_);
    stopped_ = true;
    // Does not wait; under the lock because the contexts are their callers' and go with them.
    for (grpc::ClientContext* context : active_) context->TryCancel();
    stop_.NotifyAll();
  }

  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::PlanService::Stub& plans() { return *plans_; }
  v1::StatsService::Stub& stats() { return *stats_; }

 private:
  static absl::Status Stopped() { return absl::CancelledError("the call was stopped"); }

  // gRPC's own words for an address where nobody listens do not name it.
  absl::Status Annotated(const absl::Status& status) const {
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    return Annotate(status, absl::StrCat("coordinator ", coordinator_));
  }

  // False after Stop.
  bool Register(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    if (!stopped_) active_.insert(context);
    return !stopped_;
  }
  bool Unregister(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    active_.erase(context);
    return !stopped_;
  }
  bool Pause(absl::Duration pause) {
    const absl::Time until = absl::Now() + pause;
    MutexLock lock(mutex_);
    while (!stopped_ && absl::Now() < until) stop_.WaitFor(lock, until - absl::Now());
    return !stopped_;
  }

  const std::string coordinator_;
  const absl::Duration first_pause_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::JobService::Stub> jobs_;
  const std::unique_ptr<v1::PlanService::Stub> plans_;
  const std::unique_ptr<v1::StatsService::Stub> stats_;

  Mutex mutex_;
  CondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<v1::Job> Client::Impl::Watch(
    const std::string& name, const std::function<void(const v1::WatchJobResponse&)>& on_event) {
  v1::WatchJobRequest request;
  request.set_name(name);
  SeenEvents seen;
  v1::Job last;
  absl::Duration pause = first_pause_;
  for (int attempt = 1;;) {
    bool fruitful = false;
    const absl::Status status = Attempt(
        [&](grpc::ClientContext& context) {
          auto reader = jobs_->WatchJob(&context, request);
          v1::WatchJobResponse event;
          while (reader->Read(&event)) {
            if (event.has_job()) last = event.job();
            if (!seen.IsNew(event)) continue;
            fruitful = true;
            on_event(event);
          }
          return reader->Finish();
        },
        kWatchDeadline, /*interruptible=*/true);
    if (HasEnded(last)) return last;
    if (fruitful || absl::IsDeadlineExceeded(status)) {
      attempt = 0;
      pause = first_pause_;
    }
    // A stream that ends well before the job does is a coordinator that is shutting down.
    const bool again =
        status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!again) return status;
    if (attempt++ == kAttempts) {
      return status.ok() ? absl::UnavailableError(absl::StrCat("coordinator ", coordinator_,
                                                               ": ended the watch before the job"))
                         : status;
    }
    if (!Pause(pause)) return Stopped();
    pause *= 2;
  }
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
  TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
    return impl_->jobs().CreateJob(&context, request, &response);
  }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
    return impl_->jobs().GetJob(&context, request, &response);
  }));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::WatchJob(
    const std::string& name, const std::function<void(const v1::WatchJobResponse&)>& on_event) {
  return impl_->Watch(name, on_event);
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& name, const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_reason(reason);
  v1::CancelJobResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Attempt(
      [&](grpc::ClientContext& context) {
        return impl_->jobs().CancelJob(&context, request, &response);
      },
      kCancelDeadline, /*interruptible=*/false));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::CreatePlanResponse> Client::GetPlan(const std::string& job) {
  v1::GetPlanRequest request;
  request.set_job(job);
  v1::GetPlanResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
    return impl_->plans().GetPlan(&context, request, &response);
  }));
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(response.mutable_plan());
  plan.mutable_layout()->Swap(response.mutable_layout());
  plan.mutable_forecast()->Swap(response.mutable_forecast());
  v1::ListPlanUnitsRequest page;
  page.set_job(job);
  do {
    v1::ListPlanUnitsResponse units;
    TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
      return impl_->plans().ListPlanUnits(&context, page, &units);
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
  TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
    return impl_->stats().GetStats(&context, request, &response);
  }));
  return std::move(*response.mutable_stats());
}

absl::StatusOr<std::vector<v1::Worker>> Client::ListWorkers(const std::string& job) {
  std::vector<v1::Worker> workers;
  v1::ListWorkersRequest request;
  request.set_job(job);
  do {
    v1::ListWorkersResponse response;
    TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
      return impl_->jobs().ListWorkers(&context, request, &response);
    }));
    for (v1::Worker& worker : *response.mutable_workers()) workers.push_back(std::move(worker));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return workers;
}

}  // namespace tessera
