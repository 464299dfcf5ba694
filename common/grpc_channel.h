// Channels to Tessera's servers, with the settings that common/grpc_server.h expects of its
// clients.
//
//   auto stub = v1::JobService::NewStub(MakeChannel("127.0.0.1:4242"));
#ifndef TESSERA_COMMON_GRPC_CHANNEL_H_
#define TESSERA_COMMON_GRPC_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/channel.h"

namespace tessera {

struct ChannelOptions {
  // true: a connection of its own. false: channels of one process to one server share one.
  bool own_connection = false;
};

// `target`: HOST:PORT. Connects on the first call. With the certificates and the token that the
// environment names (ClientSecurity::OfProcess, whose Check says what is wrong with them).
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, ChannelOptions options = {});

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_CHANNEL_H_
