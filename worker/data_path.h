// Puts a rank's data path on a GPU: where its layout is for one, and its program computes there.
//
//   parts.collectives = ...the host's...
//   TESSERA_RETURN_IF_ERROR(TakeGpu(api, /*gpu=*/0, rank_file, parts));
//   ... parts.collectives are NCCL's; parts.stream is where the program computes ...
//
// Unsharded units and gradients are then in the GPU's memory. Shards and optimizer state stay in
// the rank's memory file, which kernels read and write across the bus; the optimizer runs on the
// CPU.
#ifndef TESSERA_WORKER_DATA_PATH_H_
#define TESSERA_WORKER_DATA_PATH_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda_api.h"
#include "worker/session_impl.h"

namespace tessera {

// `parts` have everything but store and stream; their collectives, which join the host's ranks,
// become parts.host_collectives. The first rank of the group publishes the communicators' ids
// through parts.membership, the others fetch them. Waits until all have come, at most twice
// timeouts.collective. `rank_file` outlives parts.collectives.
// INTERNAL, RESOURCE_EXHAUSTED, UNAVAILABLE: of CUDA, NCCL and the coordinator; each names its
// call. DEADLINE_EXCEEDED: ranks did not come; blames the one that did not publish.
// What ends the waits of parts.collectives ends these too.
absl::Status TakeGpu(const CudaApi* api, int gpu, absl::Span<char> rank_file, SessionParts& parts);

}  // namespace tessera

#endif  // TESSERA_WORKER_DATA_PATH_H_
