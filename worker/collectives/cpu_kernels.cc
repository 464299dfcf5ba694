#include "worker/collectives/cpu_kernels.h"

#include <algorithm>
#include <cstring>

#include "common/float_bits.h"

namespace tessera {
namespace {

// Fits the first-level cache beside one input's block.
constexpr int64_t kBlock = 2048;

struct Float32 {
  using Stored = float;
  static float Load(float value) { return value; }
  static float Round(float value) { return value; }
};
struct BFloat16 {
  using Stored = uint16_t;
  static float Load(uint16_t value) { return FloatFromBFloat16(value); }
  static float Round(float value) { return FloatFromBFloat16(BFloat16FromFloat(value)); }
};
struct Float16 {
  using Stored = uint16_t;
  static float Load(uint16_t value) { return FloatFromFloat16(value); }
  static float Round(float value) { return FloatFromFloat16(Float16FromFloat(value)); }
};

// Calls `work` with the format of `dtype`.
template <typename Work>
void WithFormat(DType dtype, Work work) {
  if (dtype == v1::BFLOAT16) return work(BFloat16());
  if (dtype == v1::FLOAT16) return work(Float16());
  work(Float32());
}

// kDivide: a division for each input costs as much as everything else.
template <typename In, bool kDivide>
void SumBlock(absl::Span<const void* const> inputs, int64_t begin, int64_t count, float before,
              float* __restrict sum) {
  const auto term = [before](auto value) {
    return kDivide ? In::Load(value) / before : In::Load(value);
  };
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto* __restrict input = static_cast<const typename In::Stored*>(inputs[rank]) + begin;
    if (rank == 0) {
      for (int64_t i = 0; i < count; ++i) sum[i] = term(input[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] += term(input[i]);
    }
  }
}

template <typename Out>
void StoreBlock(const float* __restrict sum, int64_t count, float after, bool accumulate,
                float* __restrict out) {
  if (accumulate) {
    for (int64_t i = 0; i < count; ++i) out[i] += Out::Round(sum[i] / after);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = Out::Round(sum[i] / after);
  }
}

}  // namespace

void CastFloat32(const float* in, int64_t numel, DType dtype, void* out) {
  if (dtype == v1::FLOAT32) {
    std::memcpy(out, in, numel * sizeof(float));
    return;
  }
  auto* __restrict to = static_cast<uint16_t*>(out);
  if (dtype == v1::BFLOAT16) {
    for (int64_t i = 0; i < numel; ++i) to[i] = BFloat16FromFloat(in[i]);
  } else {
    for (int64_t i = 0; i < numel; ++i) to[i] = Float16FromFloat(in[i]);
  }
}

DivideFactors DivideFactorsFor(DType reduce_dtype, int64_t ranks) {
  if (reduce_dtype != v1::FLOAT16) return {.before = 1, .after = static_cast<float>(ranks)};
  int64_t before = 1;
  while (ranks % before == 0 && ranks > before * before) before *= 2;
  return {.before = static_cast<float>(before),
          .after = static_cast<float>(ranks) / static_cast<float>(before)};
}

void ReduceSlice(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
                 float* shard) {
  alignas(64) float sum[kBlock];
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    WithFormat(options.gradient_dtype, [&](auto format) {
      if (options.divide.before == 1) {
        SumBlock<decltype(format), false>(inputs, begin, count, 1, sum);
      } else {
        SumBlock<decltype(format), true>(inputs, begin, count, options.divide.before, sum);
      }
    });
    WithFormat(options.reduce_dtype, [&](auto format) {
      StoreBlock<decltype(format)>(sum, count, options.divide.after, options.accumulate,
                                   shard + begin);
    });
  }
}

}  // namespace tessera
