#include "common/grpc_health.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"

namespace tessera {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// One stream. Writes the newest state when the last write is done.
class HealthService::Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(HealthService* health, bool known) : health_(health), known_(known) {}

  void Update(bool serving, bool ended) {
    {
      MutexLock lock(mutex_);
      // Nothing serves again that has stopped, in whatever order the news come.
      if (known_ && state_ != HealthCheckResponse::NOT_SERVING) {
        state_ = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
      }
      ending_ = ending_ || ended;
    }
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      writing_ = false;
      ending_ = ending_ || !ok;
    }
    Pump();
  }

  void OnCancel() override { Update(true, /*ended=*/true); }

  void OnDone() override {
    std::shared_ptr<Watcher> last;
    MutexLock lock(health_->mutex_);
    for (const std::shared_ptr<Watcher>& watcher : health_->watchers_) {
      if (watcher.get() == this) last = watcher;
    }
    health_->watchers_.erase(last);
  }

 private:
  void Pump() {
    bool finish = false;
    {
      MutexLock lock(mutex_);
      if (writing_ || finished_) return;
      if (told_ != state_ && !ending_) {
        told_ = state_;
        response_.set_status(state_);
        writing_ = true;
      } else if (ending_) {
        finished_ = finish = true;
      } else {
        return;
      }
    }
    if (finish) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the server is shutting down"));
    } else {
      StartWrite(&response_);
    }
  }

  HealthService* const health_;
  const bool known_;
  HealthCheckResponse response_;  // of whoever set writing_
  Mutex mutex_;
  HealthCheckResponse::ServingStatus state_ ABSL_GUARDED_BY(mutex_) =
      HealthCheckResponse::SERVICE_UNKNOWN;
  HealthCheckResponse::ServingStatus told_ ABSL_GUARDED_BY(mutex_) = HealthCheckResponse::UNKNOWN;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (services_.count(request->service()) == 0) {
    reactor->Finish(ToGrpcStatus(absl::NotFoundError("no such service")));
    return reactor;
  }
  {
    MutexLock lock(mutex_);
    response->set_status(serving_ ? HealthCheckResponse::SERVING
                                  : HealthCheckResponse::NOT_SERVING);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  auto watcher = std::make_shared<Watcher>(this, services_.count(request->service()) > 0);
  bool serving = false;
  bool ended = false;
  {
    MutexLock lock(mutex_);
    watchers_.insert(watcher);
    serving = serving_;
    ended = ended_;
  }
  watcher->Update(serving, ended);
  return watcher.get();
}

void HealthService::WakeAll() {
  std::set<std::shared_ptr<Watcher>> watchers;
  bool serving = false;
  bool ended = false;
  {
    MutexLock lock(mutex_);
    watchers = watchers_;
    serving = serving_;
    ended = ended_;
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers) watcher->Update(serving, ended);
}

void HealthService::StopServing() {
  {
    MutexLock lock(mutex_);
    serving_ = false;
  }
  WakeAll();
}

void HealthService::EndWatches() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  WakeAll();
}

}  // namespace tessera
