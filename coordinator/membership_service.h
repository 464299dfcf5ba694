// MembershipService over gRPC: each Attend stream is a MemberSink of the Coordinator; nothing else
// is kept. What many are told is serialized once: the units when the job was planned, and of
// FormHost what all hosts get. Errors: as membership_service.proto. Thread-safe. The coordinator
// must outlive it.
#ifndef TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_
#define TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_

#include "coordinator/coordinator.h"
#include "tessera/v1/membership_service.grpc.pb.h"

namespace tessera {

// Attend and ListUnits take and give raw bytes, the others messages.
using MembershipServiceBase = v1::MembershipService::WithRawCallbackMethod_Attend<
    v1::MembershipService::WithRawCallbackMethod_ListUnits<
        v1::MembershipService::WithCallbackMethod_ReportStats<
            v1::MembershipService::WithCallbackMethod_PublishCommunicatorIds<
                v1::MembershipService::WithCallbackMethod_FetchCommunicatorIds<
                    v1::MembershipService::WithCallbackMethod_AnnounceModule<
                        v1::MembershipService::WithCallbackMethod_ChangeModelDType<
                            v1::MembershipService::Service>>>>>>>;

class MembershipService final : public MembershipServiceBase {
 public:
  explicit MembershipService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attend(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListUnits(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ReportStats(grpc::CallbackServerContext* context,
                                        const v1::ReportStatsRequest* request,
                                        v1::ReportStatsResponse* response) override;
  grpc::ServerUnaryReactor* PublishCommunicatorIds(
      grpc::CallbackServerContext* context, const v1::PublishCommunicatorIdsRequest* request,
      v1::PublishCommunicatorIdsResponse* response) override;
  grpc::ServerUnaryReactor* FetchCommunicatorIds(
      grpc::CallbackServerContext* context, const v1::FetchCommunicatorIdsRequest* request,
      v1::FetchCommunicatorIdsResponse* response) override;
  grpc::ServerUnaryReactor* AnnounceModule(grpc::CallbackServerContext* context,
                                           const v1::AnnounceModuleRequest* request,
                                           v1::AnnounceModuleResponse* response) override;
  grpc::ServerUnaryReactor* ChangeModelDType(grpc::CallbackServerContext* context,
                                             const v1::ChangeModelDTypeRequest* request,
                                             v1::ChangeModelDTypeResponse* response) override;

 private:
  Coordinator* const coordinator_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_
