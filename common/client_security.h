// What common/grpc_security.h says of this process's certificates and token, without gRPC.
#ifndef TESSERA_COMMON_CLIENT_SECURITY_H_
#define TESSERA_COMMON_CLIENT_SECURITY_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

// As ClientSecurity::Check: why calls to `target` (HOST:PORT) could not work.
absl::Status CheckClientSecurity(const std::string& target);

}  // namespace tessera

#endif  // TESSERA_COMMON_CLIENT_SECURITY_H_
