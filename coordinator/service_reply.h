// The last line of every unary method: the answer into the response, the status to the caller.
#ifndef TESSERA_COORDINATOR_SERVICE_REPLY_H_
#define TESSERA_COORDINATOR_SERVICE_REPLY_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/grpc_status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace tessera {

inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context,
                                       const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// `answer` goes to *field, which is the response or a part of it.
template <typename T>
grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, absl::StatusOr<T> answer,
                                T* field) {
  if (answer.ok()) *field = *std::move(answer);
  return Reply(context, answer.status());
}

// INVALID_ARGUMENT where a request does not say which job it means.
inline absl::Status CheckJobName(absl::string_view field, const std::string& name) {
  return name.empty() ? InvalidField(field, "is empty; give the name of a job") : absl::OkStatus();
}

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_SERVICE_REPLY_H_
