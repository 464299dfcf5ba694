#include "common/errors.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr char kReasonUrl[] = "tessera.reason";
constexpr char kFieldUrl[] = "tessera.field";

std::string Payload(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  if (!status.ok()) status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

std::string Reason(const absl::Status& status) { return Payload(status, kReasonUrl); }

absl::Status InvalidField(absl::string_view field, absl::string_view message) {
  std::string line = absl::StrCat(field, ": ", message);
  for (char& c : line) {
    if (absl::ascii_iscntrl(c)) c = ' ';
  }
  absl::Status status = absl::InvalidArgumentError(line);
  status.SetPayload(kFieldUrl, absl::Cord(field));
  return status;
}

std::string Field(const absl::Status& status) { return Payload(status, kFieldUrl); }

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace tessera
