// The health service (grpc.health.v1): SERVING for "" and each service from the start.
//
//   HealthService health({"tessera.v1.JobService"});
//   health.StopServing();          NOT_SERVING from now on; watchers hear of it
//   health.EndWatches();           the server shuts down
//
// Thread-safe.
#ifndef TESSERA_COMMON_GRPC_HEALTH_H_
#define TESSERA_COMMON_GRPC_HEALTH_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace tessera {

class HealthService final : public grpc::health::v1::Health::CallbackService {
 public:
  explicit HealthService(const std::vector<std::string>& services)
      : services_(services.begin(), services.end()) {
    services_.insert("");
  }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

  void StopServing();
  void EndWatches();

 private:
  class Watcher;

  void WakeAll();

  std::set<std::string> services_;
  Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = true;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_HEALTH_H_
