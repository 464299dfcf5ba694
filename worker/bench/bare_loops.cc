#include "worker/bench/bare_loops.h"

#include <bit>

#include "common/instruction_set.h"

namespace tessera::bare {
namespace {

TESSERA_WIDE_LOOP uint16_t Narrow(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

TESSERA_WIDE_LOOP float Widen(float value) { return value; }
TESSERA_WIDE_LOOP float Widen(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

struct NarrowLoop {
  TESSERA_WIDE_LOOP void operator()(const float* in, int64_t numel,
                                    uint16_t* __restrict out) const {
    for (int64_t i = 0; i < numel; ++i) out[i] = Narrow(in[i]);
  }
};

struct AverageTwoLoop {
  template <typename T>
  TESSERA_WIDE_LOOP void operator()(const T* a, const T* b, int64_t numel,
                                    float* __restrict out) const {
    for (int64_t i = 0; i < numel; ++i) out[i] = (Widen(a[i]) + Widen(b[i])) * 0.5f;
  }
};

struct AverageLoop {
  template <typename T>
  TESSERA_WIDE_LOOP void operator()(const T* const* inputs, int64_t count, int64_t numel,
                                    float* __restrict out) const {
    constexpr int64_t kBlock = 1024;
    for (int64_t begin = 0; begin < numel; begin += kBlock) {
      const int64_t end = begin + kBlock < numel ? begin + kBlock : numel;
      for (int64_t i = begin; i < end; ++i) out[i] = Widen(inputs[0][i]);
      for (int64_t input = 1; input < count; ++input) {
        const T* from = inputs[input];
        for (int64_t i = begin; i < end; ++i) out[i] += Widen(from[i]);
      }
      for (int64_t i = begin; i < end; ++i) out[i] /= static_cast<float>(count);
    }
  }
};

template <typename T>
void AverageOf(absl::Span<const T* const> inputs, int64_t numel, float* out) {
  if (inputs.size() == 2) {
    RunWide(AverageTwoLoop(), inputs[0], inputs[1], numel, out);
  } else {
    RunWide(AverageLoop(), inputs.data(), static_cast<int64_t>(inputs.size()), numel, out);
  }
}

struct StreamLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict gradient, int64_t numel,
                                    float* __restrict parameter, float* __restrict exp_avg,
                                    float* __restrict exp_avg_sq, uint16_t* __restrict copy) const {
    for (int64_t i = 0; i < numel; ++i) {
      const float g = gradient[i];
      exp_avg[i] += g;
      exp_avg_sq[i] += g;
      const float p = parameter[i] - g;
      parameter[i] = p;
      copy[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(p) >> 16);
    }
  }
};

}  // namespace

void ToBfloat16(const float* in, int64_t numel, uint16_t* out) {
  RunWide(NarrowLoop(), in, numel, out);
}

void Average(absl::Span<const float* const> inputs, int64_t numel, float* out) {
  AverageOf(inputs, numel, out);
}

void AverageBfloat16(absl::Span<const uint16_t* const> inputs, int64_t numel, float* out) {
  AverageOf(inputs, numel, out);
}

void StreamAdamW(const float* gradient, int64_t numel, float* parameter, float* exp_avg,
                 float* exp_avg_sq, uint16_t* copy) {
  RunWide(StreamLoop(), gradient, numel, parameter, exp_avg, exp_avg_sq, copy);
}

}  // namespace tessera::bare
