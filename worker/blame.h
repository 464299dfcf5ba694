// Which rank an error is about, carried with the status so that the coordinator need not read text.
#ifndef TESSERA_WORKER_BLAME_H_
#define TESSERA_WORKER_BLAME_H_

#include <optional>

#include "absl/status/status.h"

namespace tessera {

// `status` with the rank that caused it. An OK status stays as it is.
absl::Status BlameRank(absl::Status status, int rank);

// The rank given with BlameRank.
std::optional<int> BlamedRank(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_WORKER_BLAME_H_
