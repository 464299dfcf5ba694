// Runs the kernels on a GPU and holds what they give against the CPU's loops.
#ifndef TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_
#define TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda_device.h"

namespace tessera {

struct KernelCheck {
  std::string name;  // "cast float32 to bfloat16, divided by 3, 4099 elements from offset 1"
  bool equal = false;
};

// Casts, averages and AdamW in every pair of dtypes, of lengths around what a thread takes at once,
// aligned and not. INTERNAL, RESOURCE_EXHAUSTED: of CUDA; the check ends.
absl::StatusOr<std::vector<KernelCheck>> CheckKernels(const CudaApi& api, const CudaStream& stream);

// Lines of figures: bytes read and written for `numel` elements over the GPU's own time, best of
// ten.
absl::StatusOr<std::vector<std::string>> MeasureKernels(const CudaApi& api,
                                                        const CudaStream& stream, int64_t numel);

}  // namespace tessera

#endif  // TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_
