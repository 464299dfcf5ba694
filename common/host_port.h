// HOST:PORT as flags and the environment give it.
//
//   TESSERA_RETURN_IF_ERROR(CheckHostPort("--coordinator", "127.0.0.1:4020"));
#ifndef TESSERA_COMMON_HOST_PORT_H_
#define TESSERA_COMMON_HOST_PORT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A name or an address ([HOST] for IPv6), a colon and a port of 1 to 65535. INVALID_ARGUMENT
// (`field`): anything else, above all a URL.
absl::Status CheckHostPort(absl::string_view field, absl::string_view address);

}  // namespace tessera

#endif  // TESSERA_COMMON_HOST_PORT_H_
