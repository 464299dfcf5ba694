// How much of Tessera's memory files a process has mapped, by the kernel's own account.
#ifndef TESSERA_WORKER_MAPPED_BYTES_H_
#define TESSERA_WORKER_MAPPED_BYTES_H_

#include <cstdint>
#include <istream>

#include "absl/status/statusor.h"

namespace tessera {

// Sum of the lengths of this process's mappings whose name starts with "/memfd:tessera-". INTERNAL:
// /proc/self/maps cannot be read.
absl::StatusOr<int64_t> MeasureMappedBytes();

// The same of a text in the form of /proc/PID/maps.
absl::StatusOr<int64_t> SumMappedBytes(std::istream& maps);

}  // namespace tessera

#endif  // TESSERA_WORKER_MAPPED_BYTES_H_
