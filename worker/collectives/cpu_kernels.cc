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

struct Float64 {
  using Stored = double;
  static constexpr double Load(double value) { return value; }
  static constexpr double Store(double value) { return value; }
};
struct Float32 {
  using Stored = float;
  static constexpr float Load(float value) { return value; }
  static constexpr float Store(float value) { return value; }
  static constexpr float Store(double value) { return static_cast<float>(value); }
};
struct BFloat16 {
  using Stored = uint16_t;
  static constexpr float Load(uint16_t value) { return FloatFromBFloat16(value); }
  static constexpr uint16_t Store(float value) { return BFloat16FromFloat(value); }
  static constexpr uint16_t Store(double value) { return BFloat16FromDouble(value); }
};
struct Float16 {
  using Stored = uint16_t;
  static constexpr float Load(uint16_t value) { return FloatFromFloat16(value); }
  static constexpr uint16_t Store(float value) { return Float16FromFloat(value); }
  static constexpr uint16_t Store(double value) { return Float16FromDouble(value); }
};

// Calls `work` with the format of `dtype`; the second where that is not FLOAT64.
template <typename Work>
void WithNarrowFormat(DType dtype, Work work) {
  if (dtype == v1::BFLOAT16) return work(BFloat16());
  if (dtype == v1::FLOAT16) return work(Float16());
  work(Float32());
}
template <typename Work>
void WithFormat(DType dtype, Work work) {
  if (dtype == v1::FLOAT64) return work(Float64());
  WithNarrowFormat(dtype, work);
}

template <typename In, typename Out>
struct CastLoop {
  TESSERA_WIDE_LOOP void operator()(const typename In::Stored* __restrict in, int64_t numel,
                                    typename Out::Stored* __restrict out) const {
    for (int64_t i = 0; i < numel; ++i) out[i] = Out::Store(In::Load(in[i]));
  }
};

// BFloat16FromFloat, with the exception for NaN taken out of the loop: it costs as much as the
// rounding, and parameters have none.
template <>
struct CastLoop<Float32, BFloat16> {
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

template <typename In, typename Out>
struct AddLoop {
  TESSERA_WIDE_LOOP void operator()(const typename In::Stored* __restrict in, int64_t numel,
                                    typename Out::Stored* __restrict to) const {
    for (int64_t i = 0; i < numel; ++i) to[i] = Out::Store(Out::Load(to[i]) + In::Load(in[i]));
  }
};

// sum[i] = inputs[0][i] / before + inputs[1][i] / before + ... kDivide: a division for each input
// costs as much as everything else.
template <typename In, typename Sum, bool kDivide>
struct SumLoop {
  using Stored = typename In::Stored;

  TESSERA_WIDE_LOOP static Sum Term(Stored value, Sum before) {
    return kDivide ? In::Load(value) / before : In::Load(value);
  }

  TESSERA_WIDE_LOOP void operator()(const void* const* inputs, int64_t ranks, int64_t begin,
                                    int64_t count, Sum before, Sum* __restrict sum) const {
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
template <typename Out, bool kExact>
TESSERA_WIDE_LOOP float Average(float sum, float after, float reciprocal) {
  return Out::Load(Out::Store(kExact ? sum * reciprocal : sum / after));
}

// Into a shard of float32.
template <typename Out, bool kExact, bool kAccumulate>
struct AverageLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict sum, int64_t count, float after,
                                    float* __restrict out) const {
    const float reciprocal = 1 / after;
    for (int64_t i = 0; i < count; ++i) {
      const float average = Average<Out, kExact>(sum[i], after, reciprocal);
      out[i] = kAccumulate ? out[i] + average : average;
    }
  }
};

// The same in place, for shards of other dtypes.
template <typename Out, typename Sum>
struct AverageInPlaceLoop {
  TESSERA_WIDE_LOOP void operator()(Sum* sum, int64_t count, Sum after) const {
    for (int64_t i = 0; i < count; ++i) sum[i] = Out::Load(Out::Store(sum[i] / after));
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
      const float average = Average<Out, kExact>(sum, after, reciprocal);
      out[i] = kAccumulate ? out[i] + average : average;
    }
  }
};

// Whether x / divisor and x * (1 / divisor) are the same for every x: a power of two whose
// reciprocal is no denormal of float32.
bool ReciprocalIsExact(double divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5 && exponent <= 126 && exponent >= -125;
}

template <typename Work>
void WithBool(bool value, Work work) {
  if (value) return work(std::true_type());
  work(std::false_type());
}

// Two ranks without a division before the sum, everything at most float32 and the shard that.
void ReduceTwo(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
               float* shard, InstructionSet set) {
  WithNarrowFormat(options.gradient_dtype, [&](auto in) {
    using Stored = typename decltype(in)::Stored;
    WithNarrowFormat(options.reduce_dtype, [&](auto out) {
      WithBool(ReciprocalIsExact(options.divide.after), [&](auto exact) {
        WithBool(options.accumulate, [&](auto accumulate) {
          RunIn(set, AverageTwoLoop<decltype(in), decltype(out), exact.value, accumulate.value>(),
                static_cast<const Stored*>(inputs[0]), static_cast<const Stored*>(inputs[1]), numel,
                static_cast<float>(options.divide.after), shard);
        });
      });
    });
  });
}

// The average, in `sum`, into elements of the shard.
void Finish(float* sum, int64_t count, const ReduceOptions& options, float* shard,
            InstructionSet set) {
  WithNarrowFormat(options.reduce_dtype, [&](auto out) {
    WithBool(ReciprocalIsExact(options.divide.after), [&](auto exact) {
      WithBool(options.accumulate, [&](auto accumulate) {
        RunIn(set, AverageLoop<decltype(out), exact.value, accumulate.value>(), sum, count,
              static_cast<float>(options.divide.after), shard);
      });
    });
  });
}

template <typename Sum>
void FinishAny(Sum* sum, int64_t count, const ReduceOptions& options, char* shard,
               InstructionSet set) {
  const auto average = [&](auto out) {
    RunIn(set, AverageInPlaceLoop<decltype(out), Sum>(), sum, count,
          static_cast<Sum>(options.divide.after));
  };
  constexpr bool kWide = std::is_same_v<Sum, double>;
  if constexpr (kWide) {
    WithFormat(options.reduce_dtype, average);
  } else {
    WithNarrowFormat(options.reduce_dtype, average);
  }
  const DType from = kWide ? v1::FLOAT64 : v1::FLOAT32;
  if (options.accumulate) return AddElements(sum, from, count, options.shard_dtype, shard, set);
  CastElements(sum, from, count, options.shard_dtype, shard, set);
}

// `next` is for what is summed of all groups but the first.
template <typename Sum, typename In>
void SumBlock(absl::Span<const void* const> inputs, int64_t begin, int64_t count,
              const ReduceOptions& options, Sum* sum, Sum* next, InstructionSet set) {
  const int64_t ranks = static_cast<int64_t>(inputs.size());
  const int64_t group = options.group > 0 ? std::min(options.group, ranks) : ranks;
  constexpr DType kDType = std::is_same_v<Sum, double> ? v1::FLOAT64 : v1::FLOAT32;
  WithBool(options.divide.before != 1, [&](auto divide) {
    const SumLoop<In, Sum, divide.value> loop;
    const Sum before = static_cast<Sum>(options.divide.before);
    RunIn(set, loop, inputs.data(), group, begin, count, before, sum);
    for (int64_t first = group; first < ranks; first += group) {
      RunIn(set, loop, inputs.data() + first, std::min(group, ranks - first), begin, count, before,
            next);
      AddElements(next, kDType, count, kDType, sum, set);
    }
  });
}

void ReduceInFloat64(absl::Span<const void* const> inputs, int64_t numel,
                     const ReduceOptions& options, char* shard, InstructionSet set) {
  alignas(64) double sum[kBlock], next[kBlock];
  const int64_t bytes = DTypeBytes(options.shard_dtype);
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    WithFormat(options.gradient_dtype, [&](auto in) {
      SumBlock<double, decltype(in)>(inputs, begin, count, options, sum, next, set);
    });
    FinishAny(sum, count, options, shard + begin * bytes, set);
  }
}

}  // namespace

void CastElements(const void* in, DType from, int64_t numel, DType to, void* out,
                  InstructionSet set) {
  if (from == to) {
    if (numel > 0) std::memcpy(out, in, numel * DTypeBytes(from));
    return;
  }
  WithFormat(from, [&](auto in_format) {
    using In = decltype(in_format);
    WithFormat(to, [&](auto out_format) {
      using Out = decltype(out_format);
      if constexpr (!std::is_same_v<In, Out>) {
        RunIn(set, CastLoop<In, Out>(), static_cast<const typename In::Stored*>(in), numel,
              static_cast<typename Out::Stored*>(out));
      }
    });
  });
}

void AddElements(const void* in, DType from, int64_t numel, DType to, void* sum,
                 InstructionSet set) {
  if (from != to) {
    alignas(64) double cast[kBlock];
    for (int64_t begin = 0; begin < numel; begin += kBlock) {
      const int64_t count = std::min(kBlock, numel - begin);
      CastElements(static_cast<const char*>(in) + begin * DTypeBytes(from), from, count, to, cast,
                   set);
      AddElements(cast, to, count, to, static_cast<char*>(sum) + begin * DTypeBytes(to), set);
    }
    return;
  }
  WithFormat(to, [&](auto format) {
    using Format = decltype(format);
    RunIn(set, AddLoop<Format, Format>(), static_cast<const typename Format::Stored*>(in), numel,
          static_cast<typename Format::Stored*>(sum));
  });
}

void CastFloat32(const float* in, int64_t numel, DType dtype, void* out, InstructionSet set) {
  CastElements(in, v1::FLOAT32, numel, dtype, out, set);
}

void WidenToFloat32(const void* in, int64_t numel, DType dtype, float* out, InstructionSet set) {
  CastElements(in, dtype, numel, v1::FLOAT32, out, set);
}

void AddFloat32(const float* in, int64_t numel, DType dtype, void* to, InstructionSet set) {
  WithFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    RunIn(set, AddLoop<Float32, Format>(), in, numel, static_cast<typename Format::Stored*>(to));
  });
}

DivideFactors DivideFactorsFor(DType reduce_dtype, double divisor) {
  if (reduce_dtype != v1::FLOAT16) return {.before = 1, .after = divisor};
  double before = 1;
  while (std::fmod(divisor, before) == 0 && divisor > before * before) before *= 2;
  return {.before = before, .after = divisor / before};
}

DType AccumulationDType(DType gradient_dtype, DType reduce_dtype) {
  return gradient_dtype == v1::FLOAT64 || reduce_dtype == v1::FLOAT64 ? v1::FLOAT64 : v1::FLOAT32;
}

void ReduceSlice(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
                 void* shard, InstructionSet set) {
  if (AccumulationDType(options.gradient_dtype, options.reduce_dtype) == v1::FLOAT64) {
    return ReduceInFloat64(inputs, numel, options, static_cast<char*>(shard), set);
  }
  const bool float_shard = options.shard_dtype == v1::FLOAT32;
  if (inputs.size() == 2 && options.divide.before == 1 && float_shard) {
    return ReduceTwo(inputs, numel, options, static_cast<float*>(shard), set);
  }
  alignas(64) float sum[kBlock], next[kBlock];
  const int64_t bytes = DTypeBytes(options.shard_dtype);
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    WithNarrowFormat(options.gradient_dtype, [&](auto in) {
      SumBlock<float, decltype(in)>(inputs, begin, count, options, sum, next, set);
    });
    if (float_shard) {
      Finish(sum, count, options, static_cast<float*>(shard) + begin, set);
    } else {
      FinishAny(sum, count, options, static_cast<char*>(shard) + begin * bytes, set);
    }
  }
}

}  // namespace tessera
