// PlanService over gRPC: translates for the Coordinator and holds no state of its own. Errors: as
// plan_service.proto. Thread-safe. The coordinator must outlive it.
#ifndef TESSERA_COORDINATOR_PLAN_SERVICE_H_
#define TESSERA_COORDINATOR_PLAN_SERVICE_H_

#include "coordinator/coordinator.h"
#include "tessera/v1/plan_service.grpc.pb.h"

namespace tessera {

class PlanService final : public v1::PlanService::CallbackService {
 public:
  explicit PlanService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerUnaryReactor* CreatePlan(grpc::CallbackServerContext* context,
                                       const v1::CreatePlanRequest* request,
                                       v1::CreatePlanResponse* response) override;
  grpc::ServerUnaryReactor* ExplainModule(grpc::CallbackServerContext* context,
                                          const v1::ExplainModuleRequest* request,
                                          v1::ExplainModuleResponse* response) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override;
  grpc::ServerUnaryReactor* ListPlanUnits(grpc::CallbackServerContext* context,
                                          const v1::ListPlanUnitsRequest* request,
                                          v1::ListPlanUnitsResponse* response) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLAN_SERVICE_H_
