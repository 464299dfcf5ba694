#include "common/grpc_channel.h"

#include <utility>

#include "common/grpc_security.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace tessera {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, ChannelOptions options) {
  grpc::ChannelArguments arguments;
  // Plans come in messages of about 1 MiB, but a unit is never cut.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Finds a dead wire under a stream that is silent. The server allows a ping every 10 s, with or
  // without calls. The answer may take long: a coordinator that is stopped for a while (a debugger,
  // a suspended machine) is not gone, and losing a job's members to it would be.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 120000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A coordinator that was just started, or restarted, is found within a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // How long one attempt may take: one that forms a job of thousands is slow to shake hands.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The environment's http_proxy is for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.own_connection) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const ClientSecurity& security = ClientSecurity::OfProcess();
  ClientSecurity::Interceptors interceptors = security.InterceptorsFor(target);
  if (interceptors.empty()) {
    return grpc::CreateCustomChannel(target, security.credentials(), arguments);
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      target, security.credentials(), arguments, std::move(interceptors));
}

}  // namespace tessera
