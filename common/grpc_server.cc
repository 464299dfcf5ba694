#include "common/grpc_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"

namespace tessera {
namespace {

struct HostPort {
  std::string host;
  int port = 0;
};

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort result;
  const absl::Status malformed = InvalidField(
      "--listen", absl::StrCat("\"", text, "\" is not HOST:PORT; give e.g. 127.0.0.1:0"));
  if (colon == std::string::npos || colon == 0) return malformed;
  result.host = text.substr(0, colon);
  const bool bracketed = absl::StartsWith(result.host, "[") && absl::EndsWith(result.host, "]");
  if (absl::StrContains(result.host, ":") && !bracketed) return malformed;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &result.port)) return malformed;
  if (result.port < 0 || result.port > 65535) return malformed;
  return result;
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

void Configure(const GrpcServer::Options& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_bytes));
  builder.SetMaxSendMessageSize(-1);
  // Two servers on one port would each get some of the workers.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Costs as much as the heartbeats themselves with thousands of connections.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Must allow what common/grpc_channel.cc sends. The server sends its own pings only every two
  // hours (gRPC's default): a server that was stopped and continued would otherwise find its own
  // pings overdue and drop every worker.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

// Both plugins act on every server that is built after them, so they are switched on once.
void EnablePlugins() {
  static const bool enabled = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)enabled;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Options options,
                                                              std::vector<NamedService> services) {
  TESSERA_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  if (!options.allow_insecure && !IsLoopback(listen.host)) {
    return InvalidField("--listen", absl::StrCat(listen.host,
                                                 " is not loopback and there is no TLS; listen on "
                                                 "127.0.0.1, or say --insecure to allow it"));
  }
  EnablePlugins();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  int bound_port = 0;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &bound_port);
  for (const NamedService& service : services) builder.RegisterService(service.service);
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer());
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || bound_port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", options.listen,
                     ": the port is taken or the address is not this machine's"));
  }
  server->address_ = absl::StrCat(listen.host, ":", bound_port);
  auto* health = server->server_->GetHealthCheckService();
  for (const NamedService& service : services) health->SetServingStatus(service.name, true);
  health->SetServingStatus("", true);
  return server;
}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::StopServing() {
  // "": every service, and for good.
  if (server_ != nullptr) server_->GetHealthCheckService()->Shutdown();
}

void GrpcServer::Shutdown(absl::Duration deadline) {
  if (server_ == nullptr) return;
  StopServing();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(deadline));
  server_->Wait();
}

}  // namespace tessera
