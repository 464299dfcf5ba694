// The one place where statuses cross between Abseil and gRPC.
//
//   return reactor->Finish(ToGrpcStatus(result.status()));   // server
//   return FromGrpcStatus(stub->GetJob(&context, request, &response));   // client
//
// An error travels with a google.rpc.Status in its details:
//   ErrorInfo   always: domain "tessera"; reason as WithReason (common/errors.h) gave it, else the
//               name of the code; metadata: the field, or a limit's name and value.
//   BadRequest  where InvalidField gave a field: its path and the message.
//   RetryInfo   for UNAVAILABLE: try again after a second.
// Reason, field, code and message survive the way there and back.
#ifndef TESSERA_COMMON_GRPC_STATUS_H_
#define TESSERA_COMMON_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace tessera {

inline constexpr char kErrorDomain[] = "tessera";

grpc::Status ToGrpcStatus(const absl::Status& status);

// Details that are missing, broken or of another domain are left out; code and message always come
// through.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_STATUS_H_
