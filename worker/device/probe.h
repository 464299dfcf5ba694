// What this machine could compute on, in one line for the log.
#ifndef TESSERA_WORKER_DEVICE_PROBE_H_
#define TESSERA_WORKER_DEVICE_PROBE_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/device/cuda_api.h"

namespace tessera {

// For example "no NVIDIA driver: computing on the CPU". "" in a build without CUDA, where there is
// nothing to say. Fast where there is no driver. Thread-safety: any thread.
std::string DescribeDevices();

// The CUDA of a rank that takes GPU `index` of its host. FAILED_PRECONDITION: there is no such GPU,
// no driver or no NCCL, or this build is without CUDA; says what to do.
absl::StatusOr<const CudaApi*> OpenGpu(int index, const CudaOptions& options);

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_PROBE_H_
