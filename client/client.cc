#include "client/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/connection_error.h"
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
// Between attempts to go on with a watch.
constexpr absl::Duration kMaxWatchPause = absl::Seconds(2);
// A stream that brought no event has held if it was open for so long.
constexpr absl::Duration kHeld = absl::Seconds(1);

// So that CreateJob can be repeated without creating two jobs.
std::string NewRequestId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::SUCCEEDED || job.state() == v1::FAILED || job.state() == v1::CANCELLED;
}

// Whether the connection failed, not the coordinator: its own errors carry details.
bool IsTransport(const grpc::Status& status) {
  return !status.ok() && status.error_details().empty();
}

// Whether a watch that ended so can go on. A stream that ends well before the job does is a
// coordinator that is shutting down; proxies and resets show themselves as the last three.
bool CanResume(const absl::Status& status, bool transport) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
      return transport;
    default:
      return false;
  }
}

}  // namespace

class Client::Impl {
 public:
  Impl(const std::string& coordinator, Options options)
      : coordinator_(coordinator),
        options_(options),
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
    const absl::Status error = FromGrpcStatus(status);
    if (IsTransport(status)) return ExplainConnection(error, coordinator_, deadline);
    if (!absl::IsUnavailable(error)) return error;
    return Annotate(error, absl::StrCat("coordinator ", coordinator_));
  }

  // `method(context)` makes one idempotent call and returns its grpc::Status.
  template <typename Method>
  absl::Status Call(const Method& method) {
    absl::Status status;
    absl::Duration pause = options_.first_pause;
    for (int attempt = 1;; ++attempt) {
      status = Attempt(method, kCallDeadline, /*interruptible=*/true);
      if (!absl::IsUnavailable(status) || attempt == kAttempts) return status;
      if (!Pause(pause)) return Stopped();
      pause *= 2;
    }
  }

  absl::StatusOr<v1::Job> Watch(const std::string& name, const WatchHandlers& handlers);

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

  // One watch, over as many streams as it takes.
  struct WatchState {
    v1::WatchJobRequest request;  // with the token of the last event
    v1::Job job;                  // as last seen
    bool known = false;           // the coordinator has answered once
    bool told = false;            // that the stream is broken
    // Since when no stream has held.
    absl::Time lost = absl::InfiniteFuture();
  };
  struct StreamEnd {
    absl::Status status;
    bool transport = false;
    bool held = false;
  };
  StreamEnd WatchOnce(const WatchHandlers& handlers, WatchState& watch);

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

  bool stopped() {
    MutexLock lock(mutex_);
    return stopped_;
  }

  const std::string coordinator_;
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::JobService::Stub> jobs_;
  const std::unique_ptr<v1::PlanService::Stub> plans_;
  const std::unique_ptr<v1::StatsService::Stub> stats_;

  Mutex mutex_;
  CondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

Client::Impl::StreamEnd Client::Impl::WatchOnce(const WatchHandlers& handlers, WatchState& watch) {
  StreamEnd end;
  absl::Time opened = absl::InfiniteFuture();
  end.status = Attempt(
      [&](grpc::ClientContext& context) {
        auto reader = jobs_->WatchJob(&context, watch.request);
        v1::WatchJobResponse event;
        while (reader->Read(&event)) {
          opened = std::min(opened, options_.clock->Now());
          watch.known = true;
          if (std::exchange(watch.told, false) && handlers.on_resumed) handlers.on_resumed();
          // Without one it says that the stream is open.
          if (event.event_case() == v1::WatchJobResponse::EVENT_NOT_SET) continue;
          end.held = true;
          watch.request.set_resume_token(event.resume_token());
          if (event.has_job()) watch.job = event.job();
          handlers.on_event(event);
        }
        const grpc::Status status = reader->Finish();
        end.transport = IsTransport(status);
        return status;
      },
      kWatchDeadline, /*interruptible=*/true);
  end.held = end.held || options_.clock->Now() - opened >= kHeld;
  return end;
}

absl::StatusOr<v1::Job> Client::Impl::Watch(const std::string& name,
                                            const WatchHandlers& handlers) {
  WatchState watch;
  watch.request.set_name(name);
  absl::Duration pause = options_.first_pause;
  for (int attempt = 1;; ++attempt) {
    const StreamEnd end = WatchOnce(handlers, watch);
    if (HasEnded(watch.job)) return watch.job;
    if (stopped()) return Stopped();
    absl::Status why = end.status;
    if (!CanResume(why, end.transport)) return why;
    if (end.held) {
      watch.lost = absl::InfiniteFuture();
      pause = options_.first_pause;
      // Its own time is over: nothing is wrong.
      if (absl::IsDeadlineExceeded(why)) continue;
    }
    const absl::Time now = options_.clock->Now();
    watch.lost = std::min(watch.lost, now);
    if (why.ok()) {
      why = absl::UnavailableError(
          absl::StrCat("coordinator ", coordinator_, ": ended the watch before the job"));
    }
    // Until it has answered once, the address may be wrong.
    const bool give_up =
        watch.known ? now - watch.lost >= options_.watch_patience : attempt == kAttempts;
    if (give_up) return why;
    if (watch.known && !std::exchange(watch.told, true) && handlers.on_broken) {
      handlers.on_broken(why, options_.watch_patience);
    }
    if (!Pause(pause)) return Stopped();
    pause = std::min(2 * pause, kMaxWatchPause);
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

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs() {
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  do {
    v1::ListJobsResponse page;
    TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
      return impl_->jobs().ListJobs(&context, request, &page);
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
  request.set_reason(reason);
  v1::CancelJobResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Attempt(
      [&](grpc::ClientContext& context) {
        return impl_->jobs().CancelJob(&context, request, &response);
      },
      kCancelDeadline, /*interruptible=*/false));
  return std::move(*response.mutable_job());
}

absl::StatusOr<v1::Job> Client::DrainJob(const std::string& name) {
  v1::DrainJobRequest request;
  request.set_name(name);
  v1::DrainJobResponse response;
  TESSERA_RETURN_IF_ERROR(impl_->Call([&](grpc::ClientContext& context) {
    return impl_->jobs().DrainJob(&context, request, &response);
  }));
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
