#include "common/tls.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::StatusOr<File> Open(absl::string_view flag, const std::string& path) {
  File file(fopen(path.c_str(), "re"), &fclose);
  if (file == nullptr) {
    return InvalidField(flag, absl::StrCat(path, " cannot be read: ", strerror(errno)));
  }
  return file;
}

// Nobody can be asked for one.
int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<Certificate> ReadCertificate(absl::string_view flag, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const File file, Open(flag, path));
  Certificate certificate(PEM_read_X509(file.get(), nullptr, &NoPassword, nullptr), &X509_free);
  if (certificate == nullptr) {
    return InvalidField(flag, absl::StrCat(path, " is no certificate; give a PEM file"));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) {
    return InvalidField(flag, absl::StrCat("the certificate in ", path, " has expired; renew it"));
  }
  return certificate;
}

absl::StatusOr<Key> ReadKey(absl::string_view flag, const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const File file, Open(flag, path));
  Key key(PEM_read_PrivateKey(file.get(), nullptr, &NoPassword, nullptr), &EVP_PKEY_free);
  if (key == nullptr) {
    return InvalidField(
        flag, absl::StrCat(path, " is no private key, or an encrypted one; give a plain PEM file"));
  }
  return key;
}

absl::Status CheckIdentity(const TlsOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Certificate certificate,
                           ReadCertificate("--tls_cert_file", options.cert_file));
  TESSERA_ASSIGN_OR_RETURN(const Key key, ReadKey("--tls_key_file", options.key_file));
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return InvalidField("--tls_key_file",
                        absl::StrCat(options.key_file, " is not the key of the certificate in ",
                                     options.cert_file));
  }
  return absl::OkStatus();
}

absl::Status CheckGiven(absl::string_view flag, const std::string& path) {
  if (!path.empty()) return absl::OkStatus();
  return InvalidField(
      flag, "is not given; --tls_cert_file, --tls_key_file and --tls_ca_file go together");
}

}  // namespace

absl::Status CheckTls(const TlsOptions& options, TlsSide side) {
  if (!options.enabled()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(CheckGiven("--tls_ca_file", options.ca_file));
  const bool shows = side == TlsSide::kServer || options.require_client_cert ||
                     !options.cert_file.empty() || !options.key_file.empty();
  if (shows) {
    TESSERA_RETURN_IF_ERROR(CheckGiven("--tls_cert_file", options.cert_file));
    TESSERA_RETURN_IF_ERROR(CheckGiven("--tls_key_file", options.key_file));
    TESSERA_RETURN_IF_ERROR(CheckIdentity(options));
  }
  return ReadCertificate("--tls_ca_file", options.ca_file).status();
}

}  // namespace tessera
