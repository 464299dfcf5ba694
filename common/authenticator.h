// Who a connection's other side is, from what it shows. No gRPC.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto authenticator, Authenticator::Create({.tls = tls}));
//   TESSERA_ASSIGN_OR_RETURN(const Caller caller, authenticator->Identify(shown));
//
// Thread-safe.
#ifndef TESSERA_COMMON_AUTHENTICATOR_H_
#define TESSERA_COMMON_AUTHENTICATOR_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/caller.h"
#include "common/tls.h"
#include "common/token.h"

namespace tessera {

class Authenticator {
 public:
  struct Options {
    TlsOptions tls = {};
    // "": no token is asked for.
    std::string token_file = "";
    // Anybody may do everything on a server that asks for neither certificates nor a token,
    // although it has TLS.
    bool allow_insecure = false;
  };
  struct Shown {
    // A certificate that the CA vouches for, and its URIs.
    bool certificate = false;
    std::vector<std::string> uris = {};
    // The metadata `authorization`, where it came.
    std::optional<std::string> authorization = {};
  };

  // INVALID_ARGUMENT: as CheckTls and TokenFile::Open; or (field --tls_require_client_cert) callers
  // would have nothing to show that the server looks at.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(Options options);

  const TlsOptions& tls() const { return options_.tls; }
  bool has_token() const { return token_ != nullptr; }

  // UNAUTHENTICATED (WRONG_TOKEN): a token is asked for and this is another.
  absl::StatusOr<Caller> Identify(const Shown& shown) const;

 private:
  Authenticator(Options options, std::unique_ptr<TokenFile> token)
      : options_(std::move(options)), token_(std::move(token)) {}

  const Options options_;
  const std::unique_ptr<TokenFile> token_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_AUTHENTICATOR_H_
