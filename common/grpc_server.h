// A gRPC server with everything that Tessera's servers have in common: TLS, the guard before every
// method (common/grpc_guard.h), health, reflection, limits, keepalive, loopback only without TLS,
// and an orderly end.
//
//   JobService jobs(&coordinator);
//   TESSERA_ASSIGN_OR_RETURN(
//       auto server, GrpcServer::Start({.listen = "127.0.0.1:0", .rules = AccessRules()},
//                                      {{v1::JobService::service_full_name(), &jobs}}));
//   printf("listening %s\n", server->address().c_str());
//   ...
//   server->Shutdown(absl::Seconds(2));
//
// The services must outlive the server. Thread-safety: any thread may call anything.
#ifndef TESSERA_COMMON_GRPC_SERVER_H_
#define TESSERA_COMMON_GRPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/authenticator.h"
#include "common/caller.h"
#include "common/grpc_guard.h"
#include "common/grpc_health.h"
#include "common/grpc_reflection.h"
#include "common/limits.h"
#include "grpcpp/grpcpp.h"

namespace tessera {

class GrpcServer {
 public:
  struct Options {
    // HOST:PORT; port 0 takes a free one. [HOST]:PORT for IPv6.
    std::string listen = "127.0.0.1:0";
    // Without TLS only loopback may be listened on, unless this is set.
    bool allow_insecure = false;
    // One for each method of the services, of health and of reflection.
    std::vector<AccessRule> rules = {};
    // Who callers are, and the server's TLS. Null: no TLS, and anybody may do everything. Outlives
    // the server.
    const Authenticator* authenticator = nullptr;
    CallerLimits::Options limits = {};
    int64_t max_message_bytes = 64 << 20;
    MessageLimits message_limits = {};
    // What gRPC may hold for all connections; beyond it streams are ended.
    int64_t max_buffer_bytes = int64_t{2} << 30;
  };
  struct NamedService {
    // What health checks ask for, e.g. "tessera.v1.JobService".
    std::string name;
    grpc::Service* service = nullptr;
  };

  // Starts to serve; health answers SERVING for "" and each service when this returns.
  // INVALID_ARGUMENT (field --listen): no HOST:PORT, or not loopback, without TLS, and insecure was
  // not allowed; (field --token_file): a token would be sent to it in the clear.
  // FAILED_PRECONDITION: the port is taken or the address is not this machine's, or a method has no
  // rule.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(Options options,
                                                           std::vector<NamedService> services);

  // Shuts down at once if Shutdown was not called.
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // HOST:PORT, with the port that was bound.
  const std::string& address() const { return address_; }

  // Health answers NOT_SERVING from now on; calls still work.
  void StopServing();

  // StopServing, refuses new calls, waits up to `deadline` for the running ones and then cancels
  // them.
  void Shutdown(absl::Duration deadline);

 private:
  explicit GrpcServer(const Options& options);

  // In the order in which they are needed.
  Guard guard_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<ReflectionService> reflection_;
  std::vector<std::unique_ptr<grpc::Service>> guarded_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_SERVER_H_
