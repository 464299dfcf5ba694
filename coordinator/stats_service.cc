#include "coordinator/stats_service.h"

#include "coordinator/service_reply.h"

namespace tessera {

grpc::ServerUnaryReactor* StatsService::GetStats(grpc::CallbackServerContext* context,
                                                 const v1::GetStatsRequest* request,
                                                 v1::GetStatsResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->GetStats(request->job()), response->mutable_stats());
}

}  // namespace tessera
