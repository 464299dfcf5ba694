#include "worker/collectives/cpu_kernels.h"

#include <algorithm>

namespace tessera {
namespace {

// Fits the first-level cache beside one input's block.
constexpr int64_t kBlock = 2048;

}  // namespace

void ReduceSlice(absl::Span<const float* const> inputs, int64_t numel, float divisor,
                 bool accumulate, float* shard) {
  float sum[kBlock];
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    std::copy_n(inputs[0] + begin, count, sum);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      const float* input = inputs[rank] + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] += input[i];
    }
    float* out = shard + begin;
    if (accumulate) {
      for (int64_t i = 0; i < count; ++i) out[i] += sum[i] / divisor;
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = sum[i] / divisor;
    }
  }
}

}  // namespace tessera
