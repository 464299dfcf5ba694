#include "common/grpc_security.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/client_security.h"
#include "common/errors.h"
#include "common/process_env.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace tessera {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::InterceptionHookPoints;

constexpr unsigned int kRefreshSeconds = 1;

// Adds the token to the metadata of a call. Not a CallCredentials: those need TLS, and on loopback
// there may be none.
class SendToken final : public grpc::experimental::Interceptor {
 public:
  explicit SendToken(std::shared_ptr<TokenFile> token) : token_(std::move(token)) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization",
                                                 absl::StrCat("Bearer ", token_->Current()));
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<TokenFile> token_;
};

class SendTokens final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit SendTokens(std::shared_ptr<TokenFile> token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new SendToken(token_);
  }

 private:
  const std::shared_ptr<TokenFile> token_;
};

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& tls) {
  if (!tls.enabled()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (tls.cert_file.empty()) {
    options.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(tls.ca_file, kRefreshSeconds));
  } else {
    options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
        tls.key_file, tls.cert_file, tls.ca_file, kRefreshSeconds));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace

bool IsLoopback(absl::string_view host_port) {
  const absl::string_view host = host_port.substr(0, host_port.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& tls) {
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<FileWatcherCertificateProvider>(tls.key_file, tls.cert_file, tls.ca_file,
                                                       kRefreshSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(tls.require_client_cert
                                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                    : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

const ClientSecurity& ClientSecurity::OfProcess() {
  // Never destroyed: channels may outlive main.
  static const auto& security = *new ClientSecurity();
  return security;
}

ClientSecurity::ClientSecurity() : credentials_(grpc::InsecureChannelCredentials()) {
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  status_ = env.status();
  if (!env.ok()) return;
  tls_ = env->tls.enabled();
  status_ = CheckTls(env->tls, TlsSide::kClient);
  // Where the files are wrong: some TLS that no coordinator takes part in. Nothing is sent in the
  // clear that was not meant to be.
  credentials_ = status_.ok() ? MakeChannelCredentials(env->tls)
                              : grpc::SslCredentials(grpc::SslCredentialsOptions());
  if (env->token_file.empty() || !status_.ok()) return;
  absl::StatusOr<std::unique_ptr<TokenFile>> token = TokenFile::Open(env->token_file);
  status_ = token.status();
  if (token.ok()) token_ = *std::move(token);
}

absl::Status ClientSecurity::Check(const std::string& target) const {
  if (!status_.ok()) return status_;
  if (token_ != nullptr && !tls_ && !IsLoopback(target)) {
    return InvalidField("--token_file",
                        absl::StrCat("would cross the network to ", target,
                                     " in the clear; give --tls_ca_file, or use certificates"));
  }
  return absl::OkStatus();
}

absl::Status CheckClientSecurity(const std::string& target) {
  return ClientSecurity::OfProcess().Check(target);
}

ClientSecurity::Interceptors ClientSecurity::InterceptorsFor(const std::string& target) const {
  Interceptors interceptors;
  if (token_ != nullptr && Check(target).ok()) {
    interceptors.push_back(std::make_unique<SendTokens>(token_));
  }
  return interceptors;
}

}  // namespace tessera
