// What a Client is made of: one connection at a time, calls with deadlines and their repetition.
// For client.cc and client_watch.cc; everybody else includes client.h.
#ifndef TESSERA_CLIENT_CLIENT_IMPL_H_
#define TESSERA_CLIENT_CLIENT_IMPL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/mutex.h"
#include "tessera/v1/job_service.grpc.pb.h"
#include "tessera/v1/plan_service.grpc.pb.h"
#include "tessera/v1/stats_service.grpc.pb.h"

namespace tessera {

class Client::Impl {
 public:
  static constexpr int kAttempts = 5;

  // A channel and its stubs.
  struct Connection {
    explicit Connection(const std::string& coordinator);

    const std::shared_ptr<grpc::Channel> channel;
    const std::unique_ptr<v1::JobService::Stub> jobs;
    const std::unique_ptr<v1::PlanService::Stub> plans;
    const std::unique_ptr<v1::StatsService::Stub> stats;
  };

  Impl(const std::string& coordinator, Options options)
      : coordinator_(coordinator), options_(options) {}

  // One attempt. `method(connection, context)` makes one call and returns its grpc::Status.
  // `interruptible`: Stop ends it.
  template <typename Method>
  absl::Status Attempt(const Method& method, absl::Duration deadline, bool interruptible) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    if (interruptible && !Register(&context)) return Stopped();
    const std::shared_ptr<const Connection> connection = Connect();
    const grpc::Status status = method(*connection, context);
    if (interruptible && !Unregister(&context)) return Stopped();
    return Result(status, connection, deadline);
  }

  // As above, for an idempotent call: what is UNAVAILABLE is tried again.
  template <typename Method>
  absl::Status Call(const Method& method) {
    absl::Duration pause = options_.first_pause;
    for (int attempt = 1;; ++attempt) {
      const absl::Status status = Attempt(method, CallDeadline(), /*interruptible=*/true);
      if (!absl::IsUnavailable(status) || attempt == kAttempts) return status;
      if (!Pause(pause)) return Stopped();
      pause *= 2;
    }
  }

  // client_watch.cc
  absl::StatusOr<v1::Job> Watch(const std::string& name, const WatchHandlers& handlers);

  void Stop();

 private:
  struct WatchState;
  struct StreamEnd;

  static absl::Duration CallDeadline();
  static absl::Status Stopped();
  // Whether the connection failed, not the coordinator: its own errors carry details.
  static bool IsTransport(const grpc::Status& status);

  // The present connection, or a new one. Each attempt after a broken one begins afresh: a channel
  // that failed reconnects by itself only while somebody waits for a call on it.
  std::shared_ptr<const Connection> Connect();
  // What a call that ended so gives to the caller.
  absl::Status Result(const grpc::Status& status,
                      const std::shared_ptr<const Connection>& connection, absl::Duration deadline);
  // False after Stop.
  bool Register(grpc::ClientContext* context);
  bool Unregister(grpc::ClientContext* context);
  bool Pause(absl::Duration pause);
  bool stopped();

  // One stream of a watch.
  StreamEnd WatchOnce(const WatchHandlers& handlers, WatchState& watch);

  const std::string coordinator_;
  const Options options_;

  Mutex mutex_;
  CondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Connection> connection_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CLIENT_IMPL_H_
