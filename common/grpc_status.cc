#include "common/grpc_status.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/limits.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace tessera {
namespace {

// Headers and trailers together may take 8 KiB by gRPC's default; a longer message would cost the
// whole status.
constexpr size_t kMaxMessageBytes = 1024;
constexpr char kCut[] = "...";

std::string Bounded(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  size_t end = kMaxMessageBytes - sizeof(kCut) + 1;
  // Not in the middle of a UTF-8 sequence: protobuf strings must be whole.
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(message.substr(0, end), kCut);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Bounded(status.message());
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);

  google::rpc::ErrorInfo info;
  const std::string reason = Reason(status);
  info.set_reason(reason.empty() ? absl::StatusCodeToString(status.code()) : reason);
  info.set_domain(kErrorDomain);
  const std::string field = Field(status);
  if (!field.empty()) (*info.mutable_metadata())["field"] = Bounded(field);
  const std::pair<std::string, std::string> limit = absl::StrSplit(Limit(status), '=');
  if (!limit.first.empty()) {
    (*info.mutable_metadata())["limit"] = limit.first;
    (*info.mutable_metadata())["value"] = limit.second;
  }
  details.add_details()->PackFrom(info);

  if (!field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(Bounded(field));
    violation->set_description(std::string(absl::StripPrefix(message, absl::StrCat(field, ": "))));
    details.add_details()->PackFrom(bad_request);
  }
  if (absl::IsUnavailable(status)) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(1);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                      details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::Status result(code, status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;

  std::string reason;
  std::string field;
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    if (any.UnpackTo(&info) && info.domain() == kErrorDomain) {
      reason = info.reason();
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      field = bad_request.field_violations(0).field();
    }
  }
  if (!field.empty()) {
    // InvalidField puts the field before the message, which has it already.
    result = InvalidField(field, absl::StripPrefix(result.message(), absl::StrCat(field, ": ")));
  }
  if (reason == absl::StatusCodeToString(code)) reason.clear();
  return reason.empty() ? result : WithReason(std::move(result), reason);
}

}  // namespace tessera
