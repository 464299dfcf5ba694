#include "worker/collectives/cpu_kernels.h"

#include <cmath>
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

}  // namespace
}  // namespace tessera
