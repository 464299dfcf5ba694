#include "worker/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tessera {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
FlatTensor Tensor(std::vector<T>& values, DType dtype) {
  return {values.data(), static_cast<int64_t>(values.size()), dtype};
}

double Norm(double p, std::vector<float> values) {
  NormSum norm(p);
  norm.Add(Tensor(values, v1::FLOAT32));
  return norm.norm();
}

TEST(NormSumTest, IsTheRootOfTheSumOfPowers) {
  EXPECT_EQ(Norm(2, {3, -4}), 5);
  EXPECT_EQ(Norm(1, {3, -4, 0.5}), 7.5);
  EXPECT_NEAR(Norm(3, {1, -2, 3}), std::cbrt(36.0), 1e-15);
  EXPECT_EQ(Norm(kInfinity, {3, -4, 1}), 4);
  EXPECT_EQ(Norm(2, {}), 0);
}

TEST(NormSumTest, RunsOfAllDTypesCountAlike) {
  std::vector<double> wide = {3};
  std::vector<uint16_t> bfloat16 = {0xc080};  // -4
  std::vector<uint16_t> float16 = {0x4a00};   // 12
  for (const auto& [p, want] : std::vector<std::pair<double, double>>{{2, 13}, {kInfinity, 12}}) {
    NormSum norm(p);
    norm.Add(Tensor(wide, v1::FLOAT64));
    norm.Add(Tensor(bfloat16, v1::BFLOAT16));
    norm.Add(Tensor(float16, v1::FLOAT16));
    EXPECT_EQ(norm.norm(), want);
  }
}

TEST(NormSumTest, TermsOfRanksAddUp) {
  NormSum squares(2);
  squares.AddTerm(9);
  squares.AddTerm(16);
  EXPECT_EQ(squares.norm(), 5);
  NormSum largest(kInfinity);
  largest.AddTerm(4);
  largest.AddTerm(3);
  EXPECT_EQ(largest.norm(), 4);
}

TEST(NormSumTest, WhatIsNotFiniteStays) {
  const float nan = std::nanf("");
  for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
    EXPECT_TRUE(std::isnan(Norm(p, {1, nan, 2}))) << p;
    EXPECT_EQ(Norm(p, {1, -INFINITY, 2}), kInfinity) << p;
  }
}

}  // namespace
}  // namespace tessera
