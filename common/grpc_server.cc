#include "common/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/grpc_security.h"
#include "common/status_macros.h"

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

void Configure(const GrpcServer::Options& options, grpc::ServerBuilder& builder) {
  // The guard refuses what is longer than the limit and names it; what is twice as long is not even
  // received.
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(2 * options.max_message_bytes, INT_MAX)));
  builder.SetMaxSendMessageSize(-1);
  builder.SetResourceQuota(
      grpc::ResourceQuota("server").Resize(static_cast<size_t>(options.max_buffer_bytes)));
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

// Whether what is configured may be served at `listen`.
absl::Status CheckExposure(const GrpcServer::Options& options) {
  const bool tls = options.authenticator != nullptr && options.authenticator->tls().enabled();
  if (tls || IsLoopback(options.listen)) return absl::OkStatus();
  if (options.authenticator != nullptr && options.authenticator->has_token()) {
    return InvalidField("--token_file",
                        absl::StrCat("would be sent to ", options.listen,
                                     " in the clear; give --tls_cert_file, --tls_key_file and "
                                     "--tls_ca_file, or listen on 127.0.0.1"));
  }
  if (options.allow_insecure) return absl::OkStatus();
  return InvalidField("--listen", absl::StrCat(options.listen,
                                               " is not loopback and there is no TLS; listen on "
                                               "127.0.0.1, give --tls_cert_file, or say "
                                               "--insecure to allow it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(Options options,
                                                              std::vector<NamedService> services) {
  TESSERA_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  TESSERA_RETURN_IF_ERROR(CheckExposure(options));
  auto server = std::unique_ptr<GrpcServer>(new GrpcServer(options));
  std::vector<std::string> names;
  for (const NamedService& service : services) names.push_back(service.name);
  server->health_ = std::make_unique<HealthService>(names);
  services.push_back({grpc::health::v1::Health::service_full_name(), server->health_.get()});
  names.emplace_back(services.back().name);
  names.emplace_back(grpc::reflection::v1alpha::ServerReflection::service_full_name());
  server->reflection_ = std::make_unique<ReflectionService>(names);
  services.push_back({names.back(), server->reflection_.get()});

  grpc::ServerBuilder builder;
  Configure(options, builder);
  int bound_port = 0;
  builder.AddListeningPort(
      options.listen,
      MakeServerCredentials(options.authenticator == nullptr ? TlsOptions()
                                                             : options.authenticator->tls()),
      &bound_port);
  for (const NamedService& service : services) {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<grpc::Service> guarded,
                             server->guard_.Wrap(service.name, service.service));
    builder.RegisterService(guarded.get());
    server->guarded_.push_back(std::move(guarded));
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || bound_port == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", options.listen,
                     ": the port is taken or the address is not this machine's"));
  }
  server->address_ = absl::StrCat(listen.host, ":", bound_port);
  return server;
}

GrpcServer::GrpcServer(const Options& options)
    : guard_(Guard::Options{.rules = options.rules,
                            .authenticator = options.authenticator,
                            .limits = options.limits,
                            .max_message_bytes = options.max_message_bytes,
                            .message_limits = options.message_limits}) {}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::StopServing() {
  if (health_ != nullptr) health_->StopServing();
}

void GrpcServer::Shutdown(absl::Duration deadline) {
  if (server_ == nullptr) return;
  StopServing();
  health_->EndWatches();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(deadline));
  server_->Wait();
}

}  // namespace tessera
