#include "common/authenticator.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(Options options) {
  TESSERA_RETURN_IF_ERROR(CheckTls(options.tls, TlsSide::kServer));
  std::unique_ptr<TokenFile> token;
  if (!options.token_file.empty()) {
    TESSERA_ASSIGN_OR_RETURN(token, TokenFile::Open(options.token_file));
  }
  if (options.tls.enabled() && !options.tls.require_client_cert && token == nullptr &&
      !options.allow_insecure) {
    return InvalidField("--tls_require_client_cert",
                        "is false and there is no --token_file, so anybody could do everything; "
                        "ask for one of them, or say --insecure to allow it");
  }
  return std::unique_ptr<Authenticator>(new Authenticator(std::move(options), std::move(token)));
}

absl::StatusOr<Caller> Authenticator::Identify(const Shown& shown) const {
  Caller caller;
  if (token_ != nullptr && shown.authorization.has_value()) {
    absl::string_view given = *shown.authorization;
    if (!absl::ConsumePrefix(&given, "Bearer ") || !token_->Matches(given)) {
      return WithReason(
          absl::UnauthenticatedError("the token is not the server's; check --token_file"),
          "WRONG_TOKEN");
    }
    return Caller{.authenticated = true, .roles = kEveryRole, .name = "token"};
  }
  if (shown.certificate) {
    caller.authenticated = true;
    for (const std::string& uri : shown.uris) AddIdentity(uri, &caller);
    return caller;
  }
  const bool asks =
      token_ != nullptr || (options_.tls.enabled() && options_.tls.require_client_cert);
  return asks ? caller : Anybody();
}

}  // namespace tessera
