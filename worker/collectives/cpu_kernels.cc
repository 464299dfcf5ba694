#include "worker/collectives/cpu_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/float_bits.h"

namespace tessera {
namespace {

// Fits the first-level cache beside one input's block.
constexpr int64_t kBlock = 2048;

struct Float32 {
  using Stored = float;
  static constexpr float Load(float value) { return value; }
  static constexpr float Store(float value) { return value; }
};
struct BFloat16 {
  using Stored = uint16_t;
  static constexpr float Load(uint16_t value) { return FloatFromBFloat16(value); }
  static constexpr uint16_t Store(float value) { return BFloat16FromFloat(value); }
};
struct Float16 {
  using Stored = uint16_t;
  static constexpr float Load(uint16_t value) { return FloatFromFloat16(value); }
  static constexpr uint16_t Store(float value) { return Float16FromFloat(value); }
};

// Calls `work` with the format of `dtype`.
template <typename Work>
void WithFormat(DType dtype, Work work) {
  if (dtype == v1::BFLOAT16) return work(BFloat16());
  if (dtype == v1::FLOAT16) return work(Float16());
  work(Float32());
}

template <typename Out>
struct NarrowLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict in, int64_t numel,
                                    typename Out::Stored* __restrict out) const {
    for (int64_t i = 0; i < numel; ++i) out[i] = Out::Store(in[i]);
  }
};

// BFloat16FromFloat, with the exception for NaN taken out of the loop: it costs as much as the
// rounding, and parameters have none.
struct NarrowBFloat16Loop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict in, int64_t numel,
                                    uint16_t* __restrict out) const {
    for (int64_t begin = 0; begin < numel; begin += kBlock) {
      const int64_t end = begin + kBlock < numel ? begin + kBlock : numel;
      int32_t nan = 0;
      for (int64_t i = begin; i < end; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
        out[i] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
        nan |= in[i] != in[i];
      }
      if (nan == 0) continue;
      for (int64_t i = begin; i < end; ++i) out[i] = BFloat16FromFloat(in[i]);
    }
  }
};

template <typename In>
struct WidenLoop {
  TESSERA_WIDE_LOOP void operator()(const typename In::Stored* __restrict in, int64_t numel,
                                    float* __restrict out) const {
    for (int64_t i = 0; i < numel; ++i) out[i] = In::Load(in[i]);
  }
};

template <typename Format>
struct AddLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict in, int64_t numel,
                                    typename Format::Stored* __restrict to) const {
    for (int64_t i = 0; i < numel; ++i) to[i] = Format::Store(Format::Load(to[i]) + in[i]);
  }
};

// sum[i] = inputs[0][i] / before + inputs[1][i] / before + ... kDivide: a division for each input
// costs as much as everything else.
template <typename In, bool kDivide>
struct SumLoop {
  using Stored = typename In::Stored;

  TESSERA_WIDE_LOOP static float Term(Stored value, float before) {
    return kDivide ? In::Load(value) / before : In::Load(value);
  }

  TESSERA_WIDE_LOOP void operator()(const void* const* inputs, int64_t ranks, int64_t begin,
                                    int64_t count, float before, float* __restrict sum) const {
    const Stored* __restrict first = static_cast<const Stored*>(inputs[0]) + begin;
    if (ranks == 1) {
      for (int64_t i = 0; i < count; ++i) sum[i] = Term(first[i], before);
      return;
    }
    const Stored* __restrict second = static_cast<const Stored*>(inputs[1]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = Term(first[i], before) + Term(second[i], before);
    for (int64_t rank = 2; rank < ranks; ++rank) {
      const Stored* __restrict input = static_cast<const Stored*>(inputs[rank]) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] += Term(input[i], before);
    }
  }
};

// kExact: 1 / after is a float itself, and a product with it is the quotient, bit for bit.
template <typename Out, bool kExact, bool kAccumulate>
struct AverageLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict sum, int64_t count, float after,
                                    float* __restrict out) const {
    const float reciprocal = 1 / after;
    for (int64_t i = 0; i < count; ++i) {
      const float average = Out::Load(Out::Store(kExact ? sum[i] * reciprocal : sum[i] / after));
      out[i] = kAccumulate ? out[i] + average : average;
    }
  }
};

struct PlusLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict in, int64_t numel,
                                    float* __restrict sum) const {
    for (int64_t i = 0; i < numel; ++i) sum[i] += in[i];
  }
};

// Both at once for two ranks, which leaves nothing to be kept in between.
template <typename In, typename Out, bool kExact, bool kAccumulate>
struct AverageTwoLoop {
  using Stored = typename In::Stored;

  TESSERA_WIDE_LOOP void operator()(const Stored* __restrict first, const Stored* __restrict second,
                                    int64_t numel, float after, float* __restrict out) const {
    const float reciprocal = 1 / after;
    for (int64_t i = 0; i < numel; ++i) {
      const float sum = In::Load(first[i]) + In::Load(second[i]);
      const float average = Out::Load(Out::Store(kExact ? sum * reciprocal : sum / after));
      out[i] = kAccumulate ? out[i] + average : average;
    }
  }
};

// Whether x / divisor and x * (1 / divisor) are the same for every x: a power of two whose
// reciprocal is no denormal.
bool ReciprocalIsExact(float divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5f && exponent <= 126 && exponent >= -125;
}

template <typename Work>
void WithBool(bool value, Work work) {
  if (value) return work(std::true_type());
  work(std::false_type());
}

}  // namespace

void CastFloat32(const float* in, int64_t numel, DType dtype, void* out, InstructionSet set) {
  if (dtype == v1::FLOAT32) {
    std::memcpy(out, in, numel * sizeof(float));
    return;
  }
  if (dtype == v1::BFLOAT16) {
    return RunIn(set, NarrowBFloat16Loop(), in, numel, static_cast<uint16_t*>(out));
  }
  WithFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    RunIn(set, NarrowLoop<Format>(), in, numel, static_cast<typename Format::Stored*>(out));
  });
}

void WidenToFloat32(const void* in, int64_t numel, DType dtype, float* out, InstructionSet set) {
  if (dtype == v1::FLOAT32) {
    std::memcpy(out, in, numel * sizeof(float));
    return;
  }
  WithFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    RunIn(set, WidenLoop<Format>(), static_cast<const typename Format::Stored*>(in), numel, out);
  });
}

void AddFloat32(const float* in, int64_t numel, DType dtype, void* to, InstructionSet set) {
  WithFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    RunIn(set, AddLoop<Format>(), in, numel, static_cast<typename Format::Stored*>(to));
  });
}

DivideFactors DivideFactorsFor(DType reduce_dtype, int64_t ranks) {
  if (reduce_dtype != v1::FLOAT16) return {.before = 1, .after = static_cast<float>(ranks)};
  int64_t before = 1;
  while (ranks % before == 0 && ranks > before * before) before *= 2;
  return {.before = static_cast<float>(before),
          .after = static_cast<float>(ranks) / static_cast<float>(before)};
}

void ReduceSlice(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
                 float* shard, InstructionSet set) {
  const int64_t ranks = static_cast<int64_t>(inputs.size());
  if (ranks == 2 && options.divide.before == 1) {
    WithFormat(options.gradient_dtype, [&](auto in) {
      using Stored = typename decltype(in)::Stored;
      WithFormat(options.reduce_dtype, [&](auto out) {
        WithBool(ReciprocalIsExact(options.divide.after), [&](auto exact) {
          WithBool(options.accumulate, [&](auto accumulate) {
            RunIn(set, AverageTwoLoop<decltype(in), decltype(out), exact.value, accumulate.value>(),
                  static_cast<const Stored*>(inputs[0]), static_cast<const Stored*>(inputs[1]),
                  numel, options.divide.after, shard);
          });
        });
      });
    });
    return;
  }
  const int64_t group = options.group > 0 ? std::min(options.group, ranks) : ranks;
  alignas(64) float sum[kBlock], next[kBlock];
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    WithFormat(options.gradient_dtype, [&](auto in) {
      WithBool(options.divide.before != 1, [&](auto divide) {
        const SumLoop<decltype(in), divide.value> loop;
        RunIn(set, loop, inputs.data(), group, begin, count, options.divide.before, sum);
        for (int64_t first = group; first < ranks; first += group) {
          RunIn(set, loop, inputs.data() + first, std::min(group, ranks - first), begin, count,
                options.divide.before, next);
          RunIn(set, PlusLoop(), next, count, sum);
        }
      });
    });
    WithFormat(options.reduce_dtype, [&](auto out) {
      WithBool(ReciprocalIsExact(options.divide.after), [&](auto exact) {
        WithBool(options.accumulate, [&](auto accumulate) {
          RunIn(set, AverageLoop<decltype(out), exact.value, accumulate.value>(), sum, count,
                options.divide.after, shard + begin);
        });
      });
    });
  }
}

}  // namespace tessera
