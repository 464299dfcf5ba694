// StatsService over gRPC: translates for the Coordinator and holds no state of its own. Errors: as
// stats_service.proto. Thread-safe. The coordinator must outlive it.
#ifndef TESSERA_COORDINATOR_STATS_SERVICE_H_
#define TESSERA_COORDINATOR_STATS_SERVICE_H_

#include "coordinator/coordinator.h"
#include "tessera/v1/stats_service.grpc.pb.h"

namespace tessera {

class StatsService final : public v1::StatsService::CallbackService {
 public:
  explicit StatsService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* GetStats(grpc::CallbackServerContext* context,
                                     const v1::GetStatsRequest* request,
                                     v1::GetStatsResponse* response) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STATS_SERVICE_H_
