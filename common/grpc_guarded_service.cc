#include "common/grpc_guarded_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_guard.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/support/server_callback.h"

namespace tessera {
namespace {

using grpc::ByteBuffer;
using grpc::internal::MethodHandler;
using grpc::internal::RpcMethod;

// Service::GetHandler is for derived classes; a pointer to it serves any service.
struct HandlerAccess : grpc::Service {
  static MethodHandler* Of(grpc::Service* service, int index) {
    return (service->*&HandlerAccess::GetHandler)(index);
  }
};

class RefusedWrites final : public grpc::ServerWriteReactor<ByteBuffer> {
 public:
  explicit RefusedWrites(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class RefusedBidi final : public grpc::ServerBidiReactor<ByteBuffer, ByteBuffer> {
 public:
  explicit RefusedBidi(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Lets `handler`, which answers every call with an error, take one call.
template <typename Handler>
void RunWith(Handler handler, const MethodHandler::HandlerParameter& call, bool has_request) {
  grpc::Status parsed;
  void* data = nullptr;
  void* request = nullptr;
  if (has_request) {
    request = handler.Deserialize(call.call->call(), static_cast<grpc_byte_buffer*>(call.request),
                                  &parsed, &data);
  }
  handler.RunHandler(MethodHandler::HandlerParameter(call.call, call.server_context, request,
                                                     grpc::Status::OK, data, call.call_requester));
}

void Refuse(RpcMethod::RpcType type, const absl::Status& status,
            const MethodHandler::HandlerParameter& call) {
  const grpc::Status answer = ToGrpcStatus(status);
  if (type == RpcMethod::NORMAL_RPC) {
    const auto refuse = [&](grpc::CallbackServerContext* context, const ByteBuffer*, ByteBuffer*) {
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(answer);
      return reactor;
    };
    RunWith(grpc::internal::CallbackUnaryHandler<ByteBuffer, ByteBuffer>(refuse), call, true);
  } else if (type == RpcMethod::SERVER_STREAMING) {
    const auto refuse = [&](grpc::CallbackServerContext*, const ByteBuffer*) {
      return new RefusedWrites(answer);
    };
    RunWith(grpc::internal::CallbackServerStreamingHandler<ByteBuffer, ByteBuffer>(refuse), call,
            true);
  } else {
    const auto refuse = [&](grpc::CallbackServerContext*) { return new RefusedBidi(answer); };
    RunWith(grpc::internal::CallbackBidiHandler<ByteBuffer, ByteBuffer>(refuse), call, false);
  }
}

class GuardedMethod final : public MethodHandler {
 public:
  GuardedMethod(const Guard* guard, const AccessRule* rule, RpcMethod::RpcType type,
                const google::protobuf::Descriptor* request, MethodHandler* inner)
      : guard_(guard), rule_(rule), type_(type), request_(request), inner_(inner) {}

  // Nothing is looked at before the caller is known: what comes back is the buffer itself.
  void* Deserialize(grpc_call*, grpc_byte_buffer* request, grpc::Status*, void**) override {
    return request;
  }

  void RunHandler(const HandlerParameter& call) override {
    auto* bytes = static_cast<grpc_byte_buffer*>(call.request);
    const bool has_request = type_ != RpcMethod::BIDI_STREAMING;
    absl::StatusOr<Guard::Pass> pass =
        guard_->Admit(*rule_, *call.server_context, type_ != RpcMethod::NORMAL_RPC);
    if (!pass.ok()) return Refuse(type_, pass.status(), call);
    const HandlerParameter counted(call.call, call.server_context, call.request, grpc::Status::OK,
                                   nullptr,
                                   [over = call.call_requester, end = std::move(pass->end)] {
                                     end();
                                     over();
                                   });
    if (has_request) {
      const absl::Status status = guard_->CheckRequest(*rule_, pass->caller, *request_, bytes);
      if (!status.ok()) return Refuse(type_, status, counted);
    }
    grpc::Status parsed;
    void* data = nullptr;
    void* request =
        has_request ? inner_->Deserialize(call.call->call(), bytes, &parsed, &data) : nullptr;
    inner_->RunHandler(HandlerParameter(counted.call, counted.server_context, request, parsed, data,
                                        counted.call_requester));
  }

 private:
  const Guard* const guard_;
  const AccessRule* const rule_;
  const RpcMethod::RpcType type_;
  const google::protobuf::Descriptor* const request_;
  MethodHandler* const inner_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<grpc::Service>> GuardedService::Create(const Guard* guard,
                                                                      const std::string& name,
                                                                      grpc::Service* service) {
  const google::protobuf::ServiceDescriptor* described =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
  if (described == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no service is called ", name));
  }
  std::unique_ptr<GuardedService> guarded(new GuardedService());
  for (int i = 0; i < described->method_count(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        guarded->Add(guard, *described->method(i), HandlerAccess::Of(service, i)));
  }
  return guarded;
}

absl::Status GuardedService::Add(const Guard* guard,
                                 const google::protobuf::MethodDescriptor& method,
                                 MethodHandler* inner) {
  const std::string& name =
      names_.emplace_back(absl::StrCat("/", method.service()->full_name(), "/", method.name()));
  const AccessRule* rule = guard->FindRule(name);
  if (rule == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " has no access rule; say who may call it"));
  }
  const google::protobuf::FieldDescriptor* job =
      method.input_type()->FindFieldByName(rule->job_field);
  if (inner == nullptr || (method.client_streaming() && !method.server_streaming()) ||
      (!rule->job_field.empty() &&
       (job == nullptr || job->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING))) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is of a kind that cannot be guarded, or has no field ", rule->job_field));
  }
  const RpcMethod::RpcType type = method.client_streaming()   ? RpcMethod::BIDI_STREAMING
                                  : method.server_streaming() ? RpcMethod::SERVER_STREAMING
                                                              : RpcMethod::NORMAL_RPC;
  AddMethod(new grpc::internal::RpcServiceMethod(name.c_str(), type, nullptr));
  MarkMethodCallback(static_cast<int>(names_.size()) - 1,
                     new GuardedMethod(guard, rule, type, method.input_type(), inner));
  return absl::OkStatus();
}

}  // namespace tessera
