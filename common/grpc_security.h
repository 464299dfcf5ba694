// Credentials of servers and clients, made of the files that TlsOptions and the environment name.
// The files are looked at every second: connections made afterwards use what is in them then, and
// those that stand stay.
//
//   builder.AddListeningPort(listen, MakeServerCredentials(tls), &port);
//   ClientSecurity security = ReadClientSecurity();   of this process, once
#ifndef TESSERA_COMMON_GRPC_SECURITY_H_
#define TESSERA_COMMON_GRPC_SECURITY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/tls.h"
#include "common/token.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/client_interceptor.h"

namespace tessera {

// A host of HOST:PORT that leads nowhere but to this machine.
bool IsLoopback(absl::string_view host_port);

// `tls`: CheckTls has passed it. Not enabled: without TLS.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& tls);

// What this process's channels show: of TESSERA_TLS_* and TESSERA_TOKEN_FILE, read on first use.
class ClientSecurity {
 public:
  static const ClientSecurity& OfProcess();

  // Why channels to `target` cannot work: files that are wrong (field --tls_... or --token_file),
  // or a token that would cross a network in the clear.
  absl::Status Check(const std::string& target) const;
  std::shared_ptr<grpc::ChannelCredentials> credentials() const { return credentials_; }
  // What sends the token with each call to `target`; none where Check would refuse.
  using Interceptors =
      std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;
  Interceptors InterceptorsFor(const std::string& target) const;

 private:
  ClientSecurity();

  absl::Status status_;
  bool tls_ = false;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::shared_ptr<TokenFile> token_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_SECURITY_H_
