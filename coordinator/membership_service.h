// MembershipService over gRPC: each Attend stream is a MemberSink of the Coordinator; nothing else
// is kept. ListUnits answers with bytes that were serialized once, when the job was planned. Of a
// stream the guard sees no message, so what it asks elsewhere is asked here (member_check.h).
// Errors: as membership_service.proto. Thread-safe. The coordinator must outlive it.
#ifndef TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_
#define TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "common/authenticator.h"
#include "common/limits.h"
#include "coordinator/coordinator.h"
#include "tessera/v1/membership_service.grpc.pb.h"

namespace tessera {

// ListUnits takes and gives raw bytes, the others messages.
using MembershipServiceBase = v1::MembershipService::WithCallbackMethod_Attend<
    v1::MembershipService::WithRawCallbackMethod_ListUnits<
        v1::MembershipService::WithCallbackMethod_ReportStats<
            v1::MembershipService::WithCallbackMethod_PublishCommunicatorIds<
                v1::MembershipService::WithCallbackMethod_FetchCommunicatorIds<
                    v1::MembershipService::WithCallbackMethod_AnnounceModule<
                        v1::MembershipService::WithCallbackMethod_ChangeModelDType<
                            v1::MembershipService::Service>>>>>>>;

class MembershipService final : public MembershipServiceBase {
 public:
  struct Options {
    // Who members are. Null: anybody may join any job. Not owned.
    const Authenticator* authenticator = nullptr;
    // Agents and ranks that attend.
    int64_t max_members = 100'000;
    MessageLimits message_limits = {};
  };
  explicit MembershipService(Coordinator* coordinator) : MembershipService(coordinator, {}) {}
  MembershipService(Coordinator* coordinator, Options options)
      : coordinator_(coordinator), options_(options) {}

  grpc::ServerBidiReactor<v1::AttendRequest, v1::AttendResponse>* Attend(
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
  const Options options_;
  std::atomic<int64_t> members_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBERSHIP_SERVICE_H_
