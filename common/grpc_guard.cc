#include "common/grpc_guard.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/grpc_guarded_service.h"
#include "common/status_macros.h"
#include "google/protobuf/arena.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpc/byte_buffer.h"
#include "grpc/byte_buffer_reader.h"
#include "grpc/grpc_security_constants.h"

namespace tessera {
namespace {

// "ipv4:10.0.0.7:4242" without the port: connections of one host count together.
std::string HostOf(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  return colon == std::string::npos ? peer : peer.substr(0, colon);
}

std::string Bytes(grpc_byte_buffer* buffer) {
  grpc_byte_buffer_reader reader;
  if (grpc_byte_buffer_reader_init(&reader, buffer) == 0) return "";
  const grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
  std::string bytes(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
                    GRPC_SLICE_LENGTH(slice));
  grpc_slice_unref(slice);
  grpc_byte_buffer_reader_destroy(&reader);
  return bytes;
}

}  // namespace

Authenticator::Shown ShownBy(const grpc::ServerContextBase& context) {
  Authenticator::Shown shown;
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr) {
    shown.certificate = !auth->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty();
    for (const grpc::string_ref& uri : auth->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
      shown.uris.emplace_back(uri.data(), uri.size());
    }
  }
  const auto& metadata = context.client_metadata();
  // One that comes twice is refused as a whole.
  const auto [first, end] = metadata.equal_range("authorization");
  for (auto entry = first; entry != end; ++entry) {
    shown.authorization =
        absl::StrCat(shown.authorization.value_or(""),
                     absl::string_view(entry->second.data(), entry->second.size()));
  }
  return shown;
}

Guard::Guard(Options options) : options_(std::move(options)), limits_(options_.limits) {
  for (const AccessRule& rule : options_.rules) rules_[rule.method] = rule;
}

const AccessRule* Guard::FindRule(const std::string& method) const {
  const auto found = rules_.find(method);
  return found == rules_.end() ? nullptr : &found->second;
}

absl::StatusOr<std::unique_ptr<grpc::Service>> Guard::Wrap(const std::string& name,
                                                           grpc::Service* service) const {
  return GuardedService::Create(this, name, service);
}

absl::StatusOr<Guard::Pass> Guard::Admit(const AccessRule& rule,
                                         const grpc::ServerContextBase& context,
                                         bool stream) const {
  Pass pass;
  absl::Status known;
  if (options_.authenticator == nullptr) {
    pass.caller = Anybody();
  } else {
    absl::StatusOr<Caller> caller = options_.authenticator->Identify(ShownBy(context));
    known = caller.status();
    if (caller.ok()) pass.caller = *std::move(caller);
  }
  // Counted before they are refused: whoever guesses tokens is slowed down too.
  const std::string who =
      absl::StrCat(HostOf(context.peer()), pass.caller.name.empty() ? "" : " ", pass.caller.name);
  TESSERA_RETURN_IF_ERROR(limits_.Begin(who, stream));
  pass.end = [this, who, stream] { limits_.End(who, stream); };
  absl::Status status = known.ok() ? Authorize(rule, pass.caller) : known;
  if (!status.ok()) {
    pass.end();
    return status;
  }
  return pass;
}

absl::Status Guard::CheckRequest(const AccessRule& rule, const Caller& caller,
                                 const google::protobuf::Descriptor& type,
                                 grpc_byte_buffer* request) const {
  const auto bytes =
      request == nullptr ? int64_t{0} : static_cast<int64_t>(grpc_byte_buffer_length(request));
  if (bytes > options_.max_message_bytes) {
    return LimitExceeded("max_message_bytes", options_.max_message_bytes,
                         absl::StrCat("a ", type.name(), " of ", bytes, " bytes"));
  }
  google::protobuf::Arena arena;
  google::protobuf::Message* message =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->New(&arena);
  if (request == nullptr || !message->ParseFromString(Bytes(request))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request is no ", type.full_name(), "; are both sides of one build?"));
  }
  TESSERA_RETURN_IF_ERROR(CheckMessage(*message, options_.message_limits));
  if (rule.job_field.empty()) return absl::OkStatus();
  const google::protobuf::FieldDescriptor* field = type.FindFieldByName(rule.job_field);
  return AuthorizeJob(rule, caller, message->GetReflection()->GetString(*message, field));
}

}  // namespace tessera
