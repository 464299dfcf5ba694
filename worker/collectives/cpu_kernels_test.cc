#include "worker/collectives/cpu_kernels.h"

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "common/float_bits.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

ReduceOptions Divide(float before, float after, bool accumulate = false) {
  ReduceOptions options;
  options.divide = {before, after};
  options.accumulate = accumulate;
  return options;
}

// FSDP's and FairScale's factors for float16, as their rule gives them.
TEST(DivideFactorsTest, Float16SplitsTheDivision) {
  const struct {
    int64_t ranks;
    float before, after;
  } cases[] = {{1, 1, 1},     {2, 2, 1},     {3, 2, 1.5},   {4, 2, 2},      {5, 2, 2.5},
               {6, 4, 1.5},   {7, 2, 3.5},   {8, 4, 2},     {9, 2, 4.5},    {10, 4, 2.5},
               {12, 4, 3},    {15, 2, 7.5},  {16, 4, 4},    {24, 8, 3},     {32, 8, 4},
               {48, 8, 6},    {64, 8, 8},    {96, 16, 6},   {100, 8, 12.5}, {128, 16, 8},
               {256, 16, 16}, {512, 32, 16}, {1024, 32, 32}};
  for (const auto& expected : cases) {
    const DivideFactors factors = DivideFactorsFor(v1::FLOAT16, expected.ranks);
    EXPECT_EQ(factors.before, expected.before) << expected.ranks;
    EXPECT_EQ(factors.after, expected.after) << expected.ranks;
  }
}

TEST(DivideFactorsTest, OthersDivideOnceAfterTheSum) {
  for (const DType dtype : {v1::FLOAT32, v1::BFLOAT16}) {
    EXPECT_EQ(DivideFactorsFor(dtype, 6).before, 1);
    EXPECT_EQ(DivideFactorsFor(dtype, 6).after, 6);
  }
}

TEST(ReduceSliceTest, SumsInRankOrderInFloat32AndRoundsOnce) {
  // 2^24 + 1 + 1: in float32 from the left each 1 is lost; from the right they would not be.
  const float a = 0x1p24f, b = 1, c = 1;
  const void* inputs[] = {&a, &b, &c};
  float out = 0;
  ReduceSlice(inputs, 1, Divide(1, 1), &out);
  EXPECT_EQ(out, 0x1p24f);
  // bfloat16 inputs of 1, 1 and 2^-7 make 2.0078125, halfway between 2 and 2.015625: rounded once,
  // to even.
  const uint16_t x = BFloat16FromFloat(1), z = BFloat16FromFloat(0x1p-7f);
  const void* halves[] = {&x, &x, &z};
  ReduceOptions options;
  options.gradient_dtype = options.reduce_dtype = v1::BFLOAT16;
  ReduceSlice(halves, 1, options, &out);
  EXPECT_EQ(out, 2.0f);
  options.reduce_dtype = v1::FLOAT32;
  ReduceSlice(halves, 1, options, &out);
  EXPECT_EQ(out, 2.0078125f);
}

TEST(ReduceSliceTest, DividesAndDoesNotMultiplyByAReciprocal) {
  // The float32 nearest 1/3 times 3 ranks' sum would not give the quotient for every input.
  std::vector<float> values(5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.37f * static_cast<float>(i);
  const void* inputs[] = {values.data()};
  std::vector<float> out(values.size());
  ReduceSlice(inputs, static_cast<int64_t>(values.size()), Divide(1, 3), out.data());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(out[i], values[i] / 3.0f) << i;
}

TEST(ReduceSliceTest, AccumulateAddsToTheShard) {
  const float value = 4;
  const void* inputs[] = {&value};
  float out = 10;
  ReduceSlice(inputs, 1, Divide(2, 2, /*accumulate=*/true), &out);
  EXPECT_EQ(out, 11);
}

// FSDP2's rule with a factor of the job's own, which need not be a whole number.
TEST(DivideFactorsTest, ACustomFactorTakesThePlaceOfTheRanks) {
  EXPECT_EQ(DivideFactorsFor(v1::FLOAT64, 0.1).after, 0.1);
  EXPECT_EQ(DivideFactorsFor(v1::BFLOAT16, 2.5).before, 1);
  EXPECT_EQ(DivideFactorsFor(v1::BFLOAT16, 2.5).after, 2.5);
  EXPECT_EQ(DivideFactorsFor(v1::FLOAT16, 3.5).before, 1);
  EXPECT_EQ(DivideFactorsFor(v1::FLOAT16, 3.5).after, 3.5);
  EXPECT_EQ(DivideFactorsFor(v1::FLOAT16, 12).before, 4);
}

// A value as an element of `dtype`, and back.
std::vector<char> Element(double value, DType dtype) {
  std::vector<char> element(sizeof(double));
  CastElements(&value, v1::FLOAT64, 1, dtype, element.data());
  return element;
}
double Value(const std::vector<char>& element, DType dtype) {
  double value = 0;
  CastElements(element.data(), dtype, 1, v1::FLOAT64, &value);
  return value;
}

TEST(ReduceSliceTest, RoundsToTheReduceDTypeAndThenToTheShards) {
  // Ranks with 1 + 2^-7 and 1, which all formats have. The average, 1 + 2^-8, is halfway between
  // two bfloat16, of which 1 is the even one.
  constexpr DType kAll[] = {v1::FLOAT64, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16};
  for (const DType gradient : kAll) {
    for (const DType reduce : kAll) {
      for (const DType shard : kAll) {
        SCOPED_TRACE(DTypeName(gradient) + " " + DTypeName(reduce) + " " + DTypeName(shard));
        const std::vector<char> a = Element(1 + 0x1p-7, gradient), b = Element(1, gradient);
        const void* inputs[] = {a.data(), b.data()};
        ReduceOptions options;
        options.gradient_dtype = gradient;
        options.reduce_dtype = reduce;
        options.shard_dtype = shard;
        options.divide = DivideFactorsFor(reduce, 2);
        std::vector<char> out = Element(99, shard);
        ReduceSlice(inputs, 1, options, out.data());
        const bool rounded = reduce == v1::BFLOAT16 || shard == v1::BFLOAT16;
        EXPECT_EQ(Value(out, shard), rounded ? 1 : 1 + 0x1p-8);
        // Added to 2^8: from there bfloat16 are 2 apart, and float16 a quarter.
        out = Element(256, shard);
        options.accumulate = true;
        ReduceSlice(inputs, 1, options, out.data());
        const double term = rounded ? 1 : 1 + 0x1p-8;
        EXPECT_EQ(Value(out, shard), shard == v1::BFLOAT16  ? 256
                                     : shard == v1::FLOAT16 ? 257
                                                            : 256 + term);
      }
    }
  }
}

TEST(ReduceSliceTest, SumsInFloat64WhereGradientsOrAverageAreThat) {
  // 2^30 + 1 - 2^30 is 0 in float32.
  for (const DType gradient : {v1::FLOAT64, v1::FLOAT32}) {
    for (const DType reduce : {v1::FLOAT64, v1::FLOAT32}) {
      const std::vector<char> a = Element(0x1p30, gradient), b = Element(1, gradient),
                              c = Element(-0x1p30, gradient);
      const void* inputs[] = {a.data(), b.data(), c.data()};
      ReduceOptions options;
      options.gradient_dtype = gradient;
      options.reduce_dtype = reduce;
      float out = 99;
      ReduceSlice(inputs, 1, options, &out);
      EXPECT_EQ(out, gradient == v1::FLOAT32 && reduce == v1::FLOAT32 ? 0 : 1);
    }
  }
}

TEST(ReduceSliceTest, GroupsAreSummedFirst) {
  // (2^24 + 1) + (1 + 1): the 1 of the first group is lost, the 2 of the second is not.
  const float a = 0x1p24f, one = 1;
  const void* inputs[] = {&a, &one, &one, &one};
  ReduceOptions options;
  float out = 0;
  ReduceSlice(inputs, 1, options, &out);
  EXPECT_EQ(out, 0x1p24f);
  options.group = 2;
  ReduceSlice(inputs, 1, options, &out);
  EXPECT_EQ(out, 0x1p24f + 2);
}

// Bit patterns of every exponent, with the neighbours of every rounding boundary; odd in number, so
// that loops have a rest.
std::vector<float> Patterns() {
  std::vector<float> values;
  for (uint32_t high = 0; high <= 0xffff; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  values.push_back(1.5f);
  return values;
}

TEST(InstructionSetTest, ConversionsGiveTheSameBitsInAll) {
  const std::vector<float> values = Patterns();
  const int64_t numel = static_cast<int64_t>(values.size());
  for (const InstructionSet set : UsableInstructionSets()) {
    SCOPED_TRACE(InstructionSetName(set));
    for (const DType dtype : {v1::BFLOAT16, v1::FLOAT16}) {
      std::vector<uint16_t> narrow(values.size());
      std::vector<float> wide(values.size());
      CastFloat32(values.data(), numel, dtype, narrow.data(), set);
      WidenToFloat32(narrow.data(), numel, dtype, wide.data(), set);
      std::vector<uint16_t> sum = narrow;
      AddFloat32(values.data(), numel, dtype, sum.data(), set);
      for (int64_t i = 0; i < numel; ++i) {
        const bool bfloat16 = dtype == v1::BFLOAT16;
        const uint16_t expected =
            bfloat16 ? BFloat16FromFloat(values[i]) : Float16FromFloat(values[i]);
        const float back = bfloat16 ? FloatFromBFloat16(expected) : FloatFromFloat16(expected);
        const uint16_t twice =
            bfloat16 ? BFloat16FromFloat(back + values[i]) : Float16FromFloat(back + values[i]);
        ASSERT_EQ(narrow[i], expected) << values[i];
        ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(back)) << values[i];
        if (!std::isnan(back + values[i])) {
          ASSERT_EQ(sum[i], twice) << values[i];
        }
      }
    }
  }
}

TEST(InstructionSetTest, CastsAndSumsOfEveryTwoDTypesGiveTheSameBitsInAll) {
  constexpr DType kAll[] = {v1::FLOAT64, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16};
  constexpr int64_t kNumel = 3001;
  std::mt19937_64 random(5);
  std::vector<double> values(kNumel);
  for (double& value : values) {
    value = std::ldexp(static_cast<double>(random() >> 11) * 0x1p-53 - 0.5,
                       static_cast<int>(random() % 60) - 40);
  }
  for (const DType from : kAll) {
    std::vector<char> in(kNumel * 8);
    CastElements(values.data(), v1::FLOAT64, kNumel, from, in.data(), InstructionSet::kBaseline);
    for (const DType to : kAll) {
      std::vector<char> first, first_sum;
      for (const InstructionSet set : UsableInstructionSets()) {
        std::vector<char> out(kNumel * 8), sum(kNumel * 8);
        CastElements(in.data(), from, kNumel, to, out.data(), set);
        AddElements(in.data(), from, kNumel, to, sum.data(), set);
        AddElements(in.data(), from, kNumel, to, sum.data(), set);
        if (first.empty()) {
          first = out;
          first_sum = sum;
        }
        EXPECT_EQ(out, first) << DTypeName(from) << " " << DTypeName(to);
        EXPECT_EQ(sum, first_sum) << DTypeName(from) << " " << DTypeName(to);
      }
      // By the definition: twice a value is a value, but for what float16 is too small for.
      const double cast = Value({first.begin(), first.begin() + 8}, to);
      EXPECT_EQ(Value({first_sum.begin(), first_sum.begin() + 8}, to), 2 * cast);
    }
  }
}

TEST(InstructionSetTest, ReductionsGiveTheSameBitsInAll) {
  const int64_t numel = 5003;
  std::mt19937 random(7);
  std::vector<std::vector<float>> wide(3, std::vector<float>(numel));
  std::vector<std::vector<uint16_t>> narrow(3, std::vector<uint16_t>(numel));
  for (int rank = 0; rank < 3; ++rank) {
    for (int64_t i = 0; i < numel; ++i) {
      wide[rank][i] =
          std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 60);
      narrow[rank][i] = BFloat16FromFloat(wide[rank][i]);
    }
  }
  for (const int ranks : {1, 2, 3}) {
    for (const float after : {1.0f, 2.0f, 3.0f, 4.0f}) {
      for (const bool bfloat16 : {false, true}) {
        std::vector<const void*> inputs;
        for (int rank = 0; rank < ranks; ++rank) {
          inputs.push_back(bfloat16 ? static_cast<const void*>(narrow[rank].data())
                                    : static_cast<const void*>(wide[rank].data()));
        }
        ReduceOptions options = Divide(1, after, /*accumulate=*/true);
        options.gradient_dtype = options.reduce_dtype = bfloat16 ? v1::BFLOAT16 : v1::FLOAT32;
        for (const InstructionSet set : UsableInstructionSets()) {
          std::vector<float> shard(numel, 0.25f);
          ReduceSlice(inputs, numel, options, shard.data(), set);
          for (int64_t i = 0; i < numel; ++i) {
            float sum = 0;
            for (int rank = 0; rank < ranks; ++rank) {
              sum += bfloat16 ? FloatFromBFloat16(narrow[rank][i]) : wide[rank][i];
            }
            float average = sum / after;
            if (bfloat16) average = FloatFromBFloat16(BFloat16FromFloat(average));
            ASSERT_EQ(shard[i], 0.25f + average)
                << InstructionSetName(set) << " " << ranks << " " << after << " " << i;
          }
        }
      }
    }
  }
}

// A product with the reciprocal is the quotient only where the reciprocal is exact: not of 3, nor
// of 2^-127, whose reciprocal is infinite.
TEST(ReduceSliceTest, DividesByTheSmallestPowersOfTwoToo) {
  const float value = 0x1p-100f;
  const void* inputs[] = {&value};
  float out = 0;
  for (const float after : {0x1p-126f, 0x1p-20f, 0x1p126f, 0x1p127f}) {
    ReduceSlice(inputs, 1, Divide(1, after), &out);
    EXPECT_EQ(out, value / after) << after;
  }
}

}  // namespace
}  // namespace tessera
