// Which of this host's addresses the ranks of other hosts find it at.
#ifndef TESSERA_WORKER_HOST_ADDRESS_H_
#define TESSERA_WORKER_HOST_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The address, without a port, that this host's packets to `coordinator` (HOST:PORT) come from. It
// sends none. UNAVAILABLE: there is no way to it, or no such host.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& coordinator);

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_ADDRESS_H_
