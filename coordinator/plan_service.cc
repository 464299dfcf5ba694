#include "coordinator/plan_service.h"

#include "coordinator/service_reply.h"

namespace tessera {

grpc::ServerUnaryReactor* PlanService::CreatePlan(grpc::CallbackServerContext* context,
                                                  const v1::CreatePlanRequest* request,
                                                  v1::CreatePlanResponse* response) {
  return Reply(context, coordinator_->CreatePlan(*request), response);
}

grpc::ServerUnaryReactor* PlanService::ExplainModule(grpc::CallbackServerContext* context,
                                                     const v1::ExplainModuleRequest* request,
                                                     v1::ExplainModuleResponse* response) {
  return Reply(context, Coordinator::ExplainModule(*request), response);
}

grpc::ServerUnaryReactor* PlanService::GetPlan(grpc::CallbackServerContext* context,
                                               const v1::GetPlanRequest* request,
                                               v1::GetPlanResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->GetPlan(request->job()), response);
}

grpc::ServerUnaryReactor* PlanService::ListPlanUnits(grpc::CallbackServerContext* context,
                                                     const v1::ListPlanUnitsRequest* request,
                                                     v1::ListPlanUnitsResponse* response) {
  const absl::Status status = CheckJobName("job", request->job());
  if (!status.ok()) return Reply(context, status);
  return Reply(context, coordinator_->ListPlanUnits(*request), response);
}

}  // namespace tessera
