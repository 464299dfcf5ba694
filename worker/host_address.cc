#include "worker/host_address.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"

namespace tessera {
namespace {

absl::Status NoWay(const std::string& coordinator, const char* why) {
  return absl::UnavailableError(absl::StrCat("no address of this host leads to the coordinator ",
                                             coordinator, " (", why, "); give --host_address"));
}

// Of a socket whose packets would go to `to`; "": there is no way.
std::string SourceOf(const addrinfo& to) {
  const UniqueFd socket_fd(socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket_fd.get() < 0 || connect(socket_fd.get(), to.ai_addr, to.ai_addrlen) != 0) return "";
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST] = {};
  if (getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const std::string& coordinator) {
  const size_t colon = coordinator.rfind(':');
  if (colon == std::string::npos) return NoWay(coordinator, "it is no HOST:PORT");
  absl::string_view host(coordinator.data(), colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(std::string(host).c_str(), coordinator.c_str() + colon + 1, &hints, &found);
  if (error != 0) return NoWay(coordinator, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    if (std::string source = SourceOf(*to); !source.empty()) return source;
  }
  return NoWay(coordinator, strerror(errno));
}

}  // namespace tessera
