// Runs the kernels on a GPU and holds what they give against the CPU's loops.
#ifndef TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_
#define TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_

#include <cstdint>
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

// More elements than all threads of the largest grid take at once, aligned or not.
inline constexpr int64_t kBeyondTheGrid = (int64_t{1} << 23) + 4099;

// Casts, averages and AdamW in every pair of dtypes, of lengths around what a thread takes at once
// and of `largest` elements, aligned and not. INTERNAL, RESOURCE_EXHAUSTED: of CUDA; the check
// ends.
absl::StatusOr<std::vector<KernelCheck>> CheckKernels(const CudaApi& api, const CudaStream& stream,
                                                      int64_t largest);

// Lines of figures: bytes read and written for `numel` elements over the GPU's own time, best of
// ten.
absl::StatusOr<std::vector<std::string>> MeasureKernels(const CudaApi& api,
                                                        const CudaStream& stream, int64_t numel);

}  // namespace tessera

#endif  // TESSERA_TESTS_MEASURE_GPU_CHECK_KERNELS_H_
