#include "client/connection_error.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace tessera {
namespace {

std::string Explained(const absl::Status& error) {
  return ExplainConnection(error, "h:4020", absl::Seconds(30)).ToString();
}

TEST(ConnectionErrorTest, SpeaksOfTheCoordinatorAndNotOfSockets) {
  // What gRPC 1.51 says.
  for (const auto& [said, means] : {
           std::pair("failed to connect to all addresses; last error: UNKNOWN: "
                     "ipv4:127.0.0.1:4020: Failed to connect to remote host: Connection refused",
                     "connection refused; is it running?"),
           std::pair("DNS resolution failed for h:4020: C-ares status is not ARES_SUCCESS qtype=A "
                     "name=h is_balancer=0: Domain name not found",
                     "there is no such host; check --coordinator"),
           std::pair("failed to connect to all addresses; last error: UNAVAILABLE: "
                     "ipv4:127.0.0.1:80: Trying to connect an http1.x server",
                     "something else answers there; check --coordinator"),
           std::pair("failed to connect to all addresses; last error: UNAVAILABLE: "
                     "ipv4:127.0.0.1:80: Failed parsing HTTP/2",
                     "something else answers there; check --coordinator"),
           std::pair("Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL "
                     "routines::certificate verify failed",
                     "its certificate is not vouched for by --tls_ca_file, or has expired"),
           std::pair("Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong "
                     "version number",
                     "it answers without TLS; drop --tls_cert_file and the like"),
           std::pair("Custom verification check failed with error: UNAUTHENTICATED: Hostname "
                     "Verification Check failed.",
                     "its certificate is for another host; check --coordinator"),
           std::pair("Socket closed", "the connection broke; is it running?"),
           std::pair("recvmsg:Connection reset by peer",
                     "the connection was reset; is it running?"),
           std::pair("", "the connection broke; is it running?"),
           std::pair("the moon is full", "the moon is full"),
       }) {
    EXPECT_EQ(Explained(absl::UnavailableError(said)),
              std::string("UNAVAILABLE: cannot reach the coordinator at h:4020: ") + means);
  }
}

TEST(ConnectionErrorTest, SaysHowLongItWaited) {
  EXPECT_EQ(Explained(absl::DeadlineExceededError("Deadline Exceeded")),
            "DEADLINE_EXCEEDED: the coordinator at h:4020 did not answer within 30s");
}

TEST(ConnectionErrorTest, AnUnknownCallIsAnotherBuild) {
  EXPECT_EQ(Explained(absl::UnimplementedError("")),
            "UNIMPLEMENTED: the coordinator at h:4020 does not know this call; is it of the same "
            "build?");
}

TEST(ConnectionErrorTest, LeavesTheRestAlone) {
  EXPECT_EQ(Explained(absl::InternalError("x")), "INTERNAL: x");
  EXPECT_EQ(Explained(absl::OkStatus()), "OK");
}

}  // namespace
}  // namespace tessera
