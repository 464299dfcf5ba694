// Conversions between float32, float64 and the 16-bit formats by integer arithmetic: round to
// nearest even, denormals kept, NaN stays NaN (quieted), the same bits on every processor. (The
// conversion instructions of some processors flush denormals.) Written so that loops over them
// vectorise; constexpr, so that CUDA's kernels may call them too.
#ifndef TESSERA_COMMON_FLOAT_BITS_H_
#define TESSERA_COMMON_FLOAT_BITS_H_

#include <bit>
#include <cstdint>

namespace tessera {

constexpr uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Signed: AVX2 has no unsigned comparison.
  const bool nan = static_cast<int32_t>(bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounding = nan ? 0 : 0x7fff + ((bits >> 16) & 1);
  const uint32_t quiet = nan ? 0x400000 : 0;
  return static_cast<uint16_t>(((bits + rounding) | quiet) >> 16);
}

constexpr float FloatFromBFloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

constexpr uint16_t Float16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the result is a denormal. Added to 0.5 the value is rounded to a multiple of 2^-24,
  // the smallest of them, by the addition itself.
  const uint32_t half = std::bit_cast<uint32_t>(0.5f);
  const uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(half)) - half;
  // Otherwise the exponent's bias goes from 127 to 15, and 13 bits of the fraction are rounded
  // away.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const int32_t ordered = static_cast<int32_t>(magnitude);
  uint32_t result = ordered < (113 << 23) ? denormal : normal;
  // From halfway between the largest float16, 65,504, and 65,536 on.
  if (ordered >= 0x477ff000) result = 0x7c00;
  if (ordered > 0x7f800000) result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  return static_cast<uint16_t>(sign | result);
}

constexpr float FloatFromFloat16(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value & 0x7fff) << 13;
  const uint32_t exponent = magnitude & (0x1fu << 23);
  const uint32_t normal = magnitude + (112u << 23);
  // A denormal counts units of 2^-24: with the exponent of 2^-14 it is that value and 2^-14 too
  // much.
  const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) -
                                                    std::bit_cast<float>(113u << 23));
  uint32_t result = exponent == 0 ? denormal : normal;
  if (exponent == (0x1fu << 23)) result = magnitude + (224u << 23);  // infinity and NaN
  if (exponent == (0x1fu << 23) && (value & 0x3ff) != 0) result |= 0x400000;
  return std::bit_cast<float>(sign | result);
}

// float64 to float32, rounded to odd: what is not exact ends in an odd bit, so that rounding the
// result again, to a format with at least two bits fewer, rounds the float64 once.
constexpr float OddFloatFromDouble(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  const double excess = value < 0 ? value - back : back - value;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  bits -= excess > 0 ? 1 : 0;  // towards zero
  bits |= back != value ? 1 : 0;
  return std::bit_cast<float>(bits);
}

// Rounded once.
constexpr uint16_t BFloat16FromDouble(double value) {
  return BFloat16FromFloat(OddFloatFromDouble(value));
}
constexpr uint16_t Float16FromDouble(double value) {
  return Float16FromFloat(OddFloatFromDouble(value));
}

}  // namespace tessera

#endif  // TESSERA_COMMON_FLOAT_BITS_H_
