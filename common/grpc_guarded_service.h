// A service as the Guard serves it: for each method a handler that asks the guard and then hands
// the call on to the wrapped service's own. For common/grpc_guard.cc.
//
// gRPC's interceptors cannot refuse a call on a server before its handler runs, and what refuses
// calls by their metadata (AuthMetadataProcessor) neither works without TLS nor sends an ErrorInfo.
// So this stands where gRPC calls a method's handler.
#ifndef TESSERA_COMMON_GRPC_GUARDED_SERVICE_H_
#define TESSERA_COMMON_GRPC_GUARDED_SERVICE_H_

#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/service_type.h"

namespace tessera {

class Guard;

class GuardedService final : public grpc::Service {
 public:
  // As Guard::Wrap. `service`'s methods are all of gRPC's callback API.
  static absl::StatusOr<std::unique_ptr<grpc::Service>> Create(const Guard* guard,
                                                               const std::string& name,
                                                               grpc::Service* service);

 private:
  GuardedService() = default;
  absl::Status Add(const Guard* guard, const google::protobuf::MethodDescriptor& method,
                   grpc::internal::MethodHandler* inner);

  std::deque<std::string> names_;  // gRPC keeps pointers into them
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_GUARDED_SERVICE_H_
