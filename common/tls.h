// The files of TLS and what is wrong with them. No gRPC: common/grpc_security.h makes credentials
// of them, which follow the files when they change.
//
//   TESSERA_RETURN_IF_ERROR(CheckTls(options, TlsSide::kServer));
#ifndef TESSERA_COMMON_TLS_H_
#define TESSERA_COMMON_TLS_H_

#include <string>

#include "absl/status/status.h"

namespace tessera {

// Paths of PEM files: all or none.
struct TlsOptions {
  // Own certificate, with what leads from it to the CA after it.
  std::string cert_file = "";
  // Its key, not encrypted.
  std::string key_file = "";
  // Certificates of those who vouch for the other side.
  std::string ca_file = "";
  // A server: refuses connections that show no certificate of the CA. A client: shows one; with
  // false it may do without cert_file and key_file.
  bool require_client_cert = true;

  bool enabled() const { return !cert_file.empty() || !key_file.empty() || !ca_file.empty(); }
};

enum class TlsSide { kServer, kClient };

// OK where TLS is not enabled. INVALID_ARGUMENT (of field --tls_...): a file is not given while
// others are, cannot be read, is no PEM of its kind, is encrypted, or has expired; the key is
// another certificate's.
absl::Status CheckTls(const TlsOptions& options, TlsSide side);

}  // namespace tessera

#endif  // TESSERA_COMMON_TLS_H_
