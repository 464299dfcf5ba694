#include "common/float_bits.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// What a 16-bit pattern means, from the definition of the formats.
double Meaning(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// Nearest value of the format, ties to the even one, by looking at the neighbours; `given` is the
// candidate.
template <uint16_t (*kFrom)(float), float (*kTo)(uint16_t)>
void ExpectNearestEven(float value, int exponent_bits, int fraction_bits) {
  const uint16_t given = kFrom(value);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(kTo(given)));
    return;
  }
  ASSERT_FALSE(std::isnan(kTo(given))) << value;
  EXPECT_EQ(std::signbit(kTo(given)), std::signbit(value)) << value;
  const uint16_t magnitude = given & 0x7fff;
  const uint16_t infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  // Beyond the largest value the format goes on, for rounding, as if its exponent had one more.
  const auto at = [&](int candidate) {
    if (candidate == infinity) return std::ldexp(1.0, 1 << (exponent_bits - 1));
    return std::abs(Meaning(static_cast<uint16_t>(candidate), exponent_bits, fraction_bits));
  };
  const double exact = std::min(std::abs(static_cast<double>(value)), at(infinity));
  const double distance = std::abs(at(magnitude) - exact);
  for (const int other : {magnitude - 1, magnitude + 1}) {
    if (other < 0 || other > infinity) continue;
    const double theirs = std::abs(at(other) - exact);
    EXPECT_LE(distance, theirs) << value;
    if (distance == theirs) {
      EXPECT_EQ(magnitude % 2, 0) << value;
    }
  }
}

void ExpectBoth(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  ExpectNearestEven<BFloat16FromFloat, FloatFromBFloat16>(value, 8, 7);
  ExpectNearestEven<Float16FromFloat, FloatFromFloat16>(value, 5, 10);
}

TEST(FloatBitsTest, EveryPatternMeansWhatItsFormatSays) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const uint16_t pattern = static_cast<uint16_t>(bits);
    const double bfloat16 = Meaning(pattern, 8, 7), float16 = Meaning(pattern, 5, 10);
    if (std::isnan(bfloat16)) {
      EXPECT_TRUE(std::isnan(FloatFromBFloat16(pattern)));
    } else {
      EXPECT_EQ(FloatFromBFloat16(pattern), bfloat16) << bits;
      EXPECT_EQ(BFloat16FromFloat(FloatFromBFloat16(pattern)), pattern);
    }
    if (std::isnan(float16)) {
      EXPECT_TRUE(std::isnan(FloatFromFloat16(pattern)));
    } else {
      EXPECT_EQ(FloatFromFloat16(pattern), float16) << bits;
      EXPECT_EQ(Float16FromFloat(FloatFromFloat16(pattern)), pattern);
    }
  }
}

TEST(FloatBitsTest, EveryExponentRoundsToNearestEven) {
  for (uint32_t exponent = 0; exponent < 512; ++exponent) {  // the sign with it
    for (const uint32_t fraction :
         {0x000000u, 0x000001u, 0x000fffu, 0x001000u, 0x001001u, 0x002fffu, 0x003000u, 0x007fffu,
          0x008000u, 0x008001u, 0x017fffu, 0x018000u, 0x400000u, 0x7fe000u, 0x7fefffu, 0x7ff000u,
          0x7f8000u, 0x7f7fffu, 0x7fffffu}) {
      ExpectBoth((exponent << 23) | fraction);
    }
  }
}

TEST(FloatBitsTest, RandomPatternsRoundToNearestEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) ExpectBoth(random());
}

// A float64 between two bfloat16 (or float16) that float32 would round onto the middle of them.
TEST(FloatBitsTest, DoublesAreRoundedOnce) {
  const double bfloat16_middle = 1 + 0x1p-8, float16_middle = 1 + 0x1p-11;
  for (const double sign : {1.0, -1.0}) {
    const uint16_t minus = sign < 0 ? 0x8000 : 0;
    EXPECT_EQ(BFloat16FromDouble(sign * bfloat16_middle), 0x3f80 | minus);  // a tie: to even
    EXPECT_EQ(BFloat16FromDouble(sign * (bfloat16_middle + 0x1p-40)), 0x3f81 | minus);
    EXPECT_EQ(BFloat16FromDouble(sign * (bfloat16_middle + 0x1p-7 - 0x1p-40)), 0x3f81 | minus);
    EXPECT_EQ(Float16FromDouble(sign * float16_middle), 0x3c00 | minus);
    EXPECT_EQ(Float16FromDouble(sign * (float16_middle + 0x1p-40)), 0x3c01 | minus);
    EXPECT_EQ(Float16FromDouble(sign * (float16_middle + 0x1p-10 - 0x1p-40)), 0x3c01 | minus);
  }
}

TEST(FloatBitsTest, DoublesBeyondTheRangeAreInfinityZeroOrNan) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(BFloat16FromDouble(1e300), 0x7f80);
  EXPECT_EQ(BFloat16FromDouble(-infinity), 0xff80);
  EXPECT_EQ(BFloat16FromDouble(-1e-300), 0x8000);
  EXPECT_EQ(Float16FromDouble(65519.999999), 0x7bff);
  EXPECT_EQ(Float16FromDouble(65520.0), 0x7c00);
  EXPECT_EQ(Float16FromDouble(0x1p-25), 0);            // half of the smallest: to even
  EXPECT_EQ(Float16FromDouble(0x1p-25 + 0x1p-60), 1);  // and a little more
  EXPECT_EQ(Float16FromDouble(-infinity), 0xfc00);
  EXPECT_TRUE(std::isnan(FloatFromFloat16(Float16FromDouble(std::nan("")))));
  EXPECT_TRUE(std::isnan(FloatFromBFloat16(BFloat16FromDouble(std::nan("")))));
}

// What is a float32 is rounded as that.
TEST(FloatBitsTest, DoublesThatAreFloatsRoundAsThose) {
  std::mt19937 random(11);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    EXPECT_EQ(BFloat16FromDouble(value), BFloat16FromFloat(value)) << value;
    EXPECT_EQ(Float16FromDouble(value), Float16FromFloat(value)) << value;
  }
}

}  // namespace
}  // namespace tessera
