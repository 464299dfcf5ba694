#include "worker/workloads/replay_checks.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/parameter_init.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Two parameters of 5 and 6 elements at 0 and 8 of a flat parameter of 16, in two shards of 8.
v1::Unit TwoParameters() {
  v1::Unit unit;
  unit.set_fqn("h.0");
  unit.set_original_dtype(v1::FLOAT32);
  for (const auto& [fqn, numel] : std::vector<std::pair<std::string, int>>{{"a", 5}, {"b", 6}}) {
    v1::UnitParameter* parameter = unit.add_parameters();
    parameter->set_fqn(fqn);
    parameter->set_numel(numel);
    parameter->set_requires_grad(true);
  }
  return unit;
}

v1::UnitLayout TwoShards() {
  v1::UnitLayout layout;
  layout.set_padded_numel(16);
  layout.set_shard_numel(8);
  layout.add_parameters()->set_offset(0);
  layout.add_parameters()->set_offset(8);
  return layout;
}

constexpr ReplayRule kRule = {.factor = 2, .largest = 100};
constexpr ReplayStep kStep = {.seed = 1, .step = 4, .world_size = 2};

// The shard as it must be.
std::vector<double> Expected(int shard_index) {
  const v1::Unit unit = TwoParameters();
  const v1::UnitParameter& parameter = unit.parameters(shard_index);
  std::vector<int64_t> sums(static_cast<size_t>(parameter.numel()));
  ExpectReplay(kRule, kStep, "h.0", parameter, 0, absl::MakeSpan(sums));
  std::vector<double> shard(8);
  std::copy(sums.begin(), sums.end(), shard.begin());
  return shard;
}

absl::Status Check(int shard_index, const std::vector<double>& values) {
  ReplayShard shard;
  shard.rank = shard_index;
  shard.shard_index = shard_index;
  shard.data = values.data();
  shard.dtype = v1::FLOAT64;
  return CheckGradientShard(kRule, kStep, TwoParameters(), TwoShards(), shard);
}

TEST(ReplayChecksTest, EveryElementOfAShardIsLookedAt) {
  for (const int shard_index : {0, 1}) {
    std::vector<double> values = Expected(shard_index);
    EXPECT_TRUE(Check(shard_index, values).ok());
    for (double& value : values) {
      value += 1;
      EXPECT_EQ(Check(shard_index, values).code(), absl::StatusCode::kDataLoss);
      value -= 1;
    }
  }
}

TEST(ReplayChecksTest, AveragesAreScaledAsTheLossIs) {
  std::vector<double> values = Expected(0);
  for (double& value : values) value *= 8;
  ReplayShard shard;
  shard.data = values.data();
  shard.dtype = v1::FLOAT64;
  ReplayStep step = kStep;
  step.scale = 8;
  EXPECT_TRUE(CheckGradientShard(kRule, step, TwoParameters(), TwoShards(), shard).ok());
  step.scale = 4;
  EXPECT_FALSE(CheckGradientShard(kRule, step, TwoParameters(), TwoShards(), shard).ok());
}

TEST(ReplayChecksTest, AWrongElementIsNamed) {
  std::vector<double> values = Expected(1);
  const auto was = static_cast<int64_t>(values[3]);
  values[3] += 1;
  EXPECT_EQ(Check(1, values).message(),
            "rank 1: gradient of \"b\" in unit h.0, element 3, step 4: expected " +
                std::to_string(was) + ", got " + std::to_string(was + 1));
  values = Expected(1);
  values[7] = 42;
  EXPECT_EQ(Check(1, values).message(),
            "rank 1: gradients of unit h.0, padding at element 15 of the flat parameter, step 4: "
            "expected 0, got 42");
}

TEST(ReplayChecksTest, FirstValuesAreTheSeedsInTheDtypeOfTheView) {
  const v1::Unit unit = TwoParameters();
  std::vector<float> values(6);
  ASSERT_TRUE(FillParameter(9, "b", {}, 0, absl::MakeSpan(values)).ok());
  TensorView view = {.data = values.data(), .dtype = v1::FLOAT32, .shape = {6}, .numel = 6};
  EXPECT_TRUE(CheckFirstValues(9, 0, unit, unit.parameters(1), view).ok());
  const absl::Status other = CheckFirstValues(8, 0, unit, unit.parameters(1), view);
  EXPECT_EQ(other.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(other.message(), HasSubstr("parameter \"b\" in unit h.0, element 0"));
  values[5] += 0.5f;
  EXPECT_THAT(CheckFirstValues(9, 0, unit, unit.parameters(1), view).message(),
              HasSubstr("element 5"));
}

TEST(ReplayChecksTest, BitsOfParametersTellThemApart) {
  std::vector<char> bytes(21, 1);
  const TensorView view = {.data = bytes.data(), .dtype = v1::INT8, .shape = {21}, .numel = 21};
  ParameterBits bits;
  bits.Add(view);
  const double first = bits.Take();
  EXPECT_EQ(bits.Take(), 0);
  bits.Add(view);
  EXPECT_EQ(bits.Take(), first);
  for (char& byte : bytes) {
    byte ^= 64;
    bits.Add(view);
    EXPECT_NE(bits.Take(), first);
    byte ^= 64;
  }
}

}  // namespace
}  // namespace tessera
