#include "client/connection_error.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

struct Cause {
  // In gRPC 1.51's message, in any case.
  const char* said;
  const char* means;
};

// The first that is found.
constexpr Cause kCauses[] = {
    {"connection refused", "connection refused; is it running?"},
    {"domain name not found", "there is no such host; check --coordinator"},
    {"dns resolution failed", "the host's name cannot be resolved; check --coordinator"},
    {"http1", "something else answers there; check --coordinator"},
    {"parsing http/2", "something else answers there; check --coordinator"},
    {"certificate verify failed",
     "its certificate is not vouched for by --tls_ca_file, or has expired"},
    {"hostname verification", "its certificate is for another host; check --coordinator"},
    {"wrong version number", "it answers without TLS; drop --tls_cert_file and the like"},
    {"ssl_error", "TLS failed: the certificates of both sides do not fit each other"},
    {"connection timed out", "connection timed out; is the host up?"},
    {"handshake", "no connection came about in time; is the host up?"},
    {"no route to host", "no route to the host; is it up?"},
    {"network is unreachable", "the network is unreachable"},
    {"connection reset", "the connection was reset; is it running?"},
    {"broken pipe", "the connection broke; is it running?"},
    {"socket closed", "the connection broke; is it running?"},
    {"goaway", "the connection was closed; is it shutting down?"},
    {"keepalive", "it does not answer; is it stopped?"},
};

std::string Means(absl::string_view message) {
  const std::string lower = absl::AsciiStrToLower(message);
  for (const Cause& cause : kCauses) {
    if (absl::StrContains(lower, cause.said)) return cause.means;
  }
  return message.empty() ? "the connection broke; is it running?" : std::string(message);
}

}  // namespace

absl::Status ExplainConnection(const absl::Status& error, absl::string_view coordinator,
                               absl::Duration deadline) {
  const std::string who = absl::StrCat("the coordinator at ", coordinator);
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
      return absl::UnavailableError(
          absl::StrCat("cannot reach ", who, ": ", Means(error.message())));
    case absl::StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(
          absl::StrCat(who, " did not answer within ", absl::FormatDuration(deadline)));
    case absl::StatusCode::kUnimplemented:
      return absl::UnimplementedError(
          absl::StrCat(who, " does not know this call; is it of the same build?"));
    default:
      return error;
  }
}

}  // namespace tessera
