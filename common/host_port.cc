#include "common/host_port.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"

namespace tessera {
namespace {

bool IsHost(absl::string_view host) {
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty()) return false;
  for (const char c : host) {
    const bool good =
        absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || (bracketed && c == ':');
    if (!good) return false;
  }
  return true;
}

}  // namespace

absl::Status CheckHostPort(absl::string_view field, absl::string_view address) {
  const size_t scheme = address.find("://");
  if (scheme != absl::string_view::npos) {
    return InvalidField(field, absl::StrCat("\"", address, "\" is a URL; give HOST:PORT, without ",
                                            address.substr(0, scheme + 3)));
  }
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !IsHost(address.substr(0, colon)) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return InvalidField(
        field, absl::StrCat("\"", address, "\" is not HOST:PORT with a port of 1 to 65535"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
