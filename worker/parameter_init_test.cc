#include "worker/parameter_init.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr uint64_t kSeed = 1;

v1::Init Rule(const std::string& kind) {
  v1::Init init;
  init.set_kind(kind);
  return init;
}

std::vector<float> Fill(const std::string& fqn, const v1::Init& init, int64_t first, size_t count,
                        uint64_t seed = kSeed) {
  std::vector<float> values(count, -1);
  EXPECT_TRUE(FillParameter(seed, fqn, init, first, absl::MakeSpan(values)).ok());
  return values;
}

struct Planned {
  v1::Unit unit;
  v1::UnitLayout layout;
};

// Three parameters of odd sizes, each start padded to a multiple of 4 elements, the end to a
// multiple of `world`.
Planned MakePlanned(int64_t world) {
  Planned planned;
  planned.unit.set_fqn("h.0");
  planned.layout.set_fqn("h.0");
  int64_t offset = 0;
  for (const auto& [name, numel, kind] :
       {std::tuple{"h.0.a", 101, "normal"}, {"h.0.b", 7, "ones"}, {"h.0.c", 50, "uniform"}}) {
    v1::UnitParameter* parameter = planned.unit.add_parameters();
    parameter->set_fqn(name);
    parameter->set_numel(numel);
    parameter->mutable_init()->set_kind(kind);
    v1::ParameterLayout* place = planned.layout.add_parameters();
    place->set_fqn(name);
    place->set_offset(offset);
    offset = (offset + numel + 3) / 4 * 4;
  }
  planned.layout.set_shard_numel((offset + world - 1) / world);
  planned.layout.set_padded_numel(planned.layout.shard_numel() * world);
  return planned;
}

TEST(ParameterInitTest, SameModelAtEveryWorldSizeAndZeroPadding) {
  for (const int64_t world : {1, 2, 3, 4, 7}) {
    const Planned planned = MakePlanned(world);
    std::vector<float> flat;
    for (int64_t shard = 0; shard < world; ++shard) {
      std::vector<float> values(static_cast<size_t>(planned.layout.shard_numel()), NAN);
      ASSERT_TRUE(FillShard(planned.unit, planned.layout, static_cast<int>(shard), kSeed,
                            absl::MakeSpan(values))
                      .ok());
      flat.insert(flat.end(), values.begin(), values.end());
    }
    // Offsets: a 0..100, pad 3, b 104..110, pad 1, c 112..161, then padding.
    std::vector<float> expected = Fill("h.0.a", Rule("normal"), 0, 101);
    expected.resize(104, 0);
    expected.resize(111, 1);
    expected.resize(112, 0);
    for (const float value : Fill("h.0.c", Rule("uniform"), 0, 50)) expected.push_back(value);
    expected.resize(flat.size(), 0);
    EXPECT_EQ(flat, expected) << "world size " << world;
  }
}

TEST(ParameterInitTest, ElementDependsOnItsIndexAlone) {
  for (const char* kind : {"normal", "uniform"}) {
    const std::vector<float> whole = Fill("w", Rule(kind), 0, 64);
    for (int64_t first = 0; first < 16; ++first) {
      for (size_t count = 0; count < 16; ++count) {
        EXPECT_EQ(Fill("w", Rule(kind), first, count),
                  std::vector<float>(whole.begin() + first, whole.begin() + first + count));
      }
    }
  }
}

TEST(ParameterInitTest, SeedAndNameBothMatter) {
  const std::vector<float> values = Fill("w", Rule("normal"), 0, 64);
  EXPECT_NE(Fill("v", Rule("normal"), 0, 64), values);
  EXPECT_NE(Fill("w", Rule("normal"), 0, 64, kSeed + 1), values);
  EXPECT_NE(Fill("w", Rule("normal"), 0, 64, kSeed + (uint64_t{1} << 32)), values);
}

// Seed 0 and the FQN whose words the block starts with: Box-Muller by the standard library, in
// double.
TEST(ParameterInitTest, NormalIsBoxMullerOfTheBlocksWords) {
  v1::Init unit_normal = Rule("normal");
  unit_normal.set_std(1);
  v1::Init uniform = Rule("uniform");
  uniform.set_high(4294967296.0);  // the words themselves, but for rounding to float32
  const std::vector<float> normals = Fill("w", unit_normal, 0, 100000);
  const std::vector<float> words = Fill("w", uniform, 0, 100000);
  double worst = 0;
  for (size_t i = 0; i < normals.size(); i += 2) {
    if (words[i] < 65536) continue;  // there the rounding of the word shows
    const double radius = std::sqrt(-2 * std::log((words[i] + 1.0) / 4294967296.0));
    const double angle = 2 * M_PI * (words[i + 1] / 4294967296.0);
    worst = std::max(worst, std::abs(normals[i] - radius * std::cos(angle)));
    worst = std::max(worst, std::abs(normals[i + 1] - radius * std::sin(angle)));
  }
  // A word rounded to 24 bits moves the angle by up to 2 pi / 2^25; near u = 1 the radius moves by
  // sqrt(2^-24).
  EXPECT_LT(worst, 5e-4);
}

TEST(ParameterInitTest, NormalHasMomentsOfANormal) {
  v1::Init init = Rule("normal");
  init.set_std(0.5);
  const size_t count = 1'000'000;
  const std::vector<float> values = Fill("w", init, 0, count);
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0;
  int64_t within_one = 0;
  for (size_t i = 0; i < count; ++i) {
    const double z = values[i] / 0.5;
    sum += z;
    squares += z * z;
    cubes += z * z * z;
    fourths += z * z * z * z;
    if (i > 0) neighbours += z * values[i - 1] / 0.5;
    within_one += std::abs(z) < 1;
  }
  // Each bound is five standard deviations of the estimate.
  EXPECT_NEAR(sum / count, 0, 0.005);
  EXPECT_NEAR(squares / count, 1, 0.0071);
  EXPECT_NEAR(cubes / count, 0, 0.02);
  EXPECT_NEAR(fourths / count, 3, 0.05);
  EXPECT_NEAR(neighbours / count, 0, 0.005);
  EXPECT_NEAR(static_cast<double>(within_one) / count, 0.682689, 0.0024);
}

TEST(ParameterInitTest, AbsentRuleIsNormalWithStd002) {
  v1::Init init = Rule("normal");
  init.set_std(0.02);
  EXPECT_EQ(Fill("w", v1::Init(), 0, 1000), Fill("w", init, 0, 1000));
  EXPECT_EQ(Fill("w", Rule("normal"), 0, 1000), Fill("w", init, 0, 1000));
}

TEST(ParameterInitTest, UniformCoversItsIntervalEvenlyAndLeavesOutHigh) {
  v1::Init init = Rule("uniform");
  init.set_low(-2);
  init.set_high(6);
  const size_t count = 1'000'000;
  std::vector<int> counts(8, 0);
  for (const float value : Fill("w", init, 0, count)) {
    ASSERT_GE(value, -2);
    ASSERT_LT(value, 6);
    ++counts[static_cast<size_t>(value + 2)];
  }
  // 125,000 each with a standard deviation of 331.
  for (const int cell : counts) EXPECT_NEAR(cell, 125000, 1700);
  // An interval of one float32 step: rounding would reach `high` half of the time.
  init.set_low(1);
  init.set_high(std::nextafter(1.0f, 2.0f));
  for (const float value : Fill("w", init, 0, 1000)) EXPECT_EQ(value, 1);
}

TEST(ParameterInitTest, RefusesBadRulesNamingTheParameter) {
  std::vector<float> values(4);
  v1::Init negative = Rule("normal");
  negative.set_std(-1);
  v1::Init empty = Rule("uniform");
  empty.set_low(1);
  for (const v1::Init& init : {Rule("xavier"), negative, empty}) {
    const absl::Status status = FillParameter(kSeed, "h.0.w", init, 0, absl::MakeSpan(values));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Field(status), "h.0.w");
  }
}

TEST(ParameterInitTest, RefusesMemoryOrLayoutOfAnotherUnit) {
  Planned planned = MakePlanned(2);
  std::vector<float> values(static_cast<size_t>(planned.layout.shard_numel()) + 1);
  EXPECT_EQ(FillShard(planned.unit, planned.layout, 0, kSeed, absl::MakeSpan(values)).code(),
            absl::StatusCode::kInvalidArgument);
  values.pop_back();
  planned.layout.mutable_parameters(1)->set_offset(3);  // inside the first parameter
  const absl::Status status =
      FillShard(planned.unit, planned.layout, 0, kSeed, absl::MakeSpan(values));
  EXPECT_EQ(Field(status), "h.0.b");
}

}  // namespace
}  // namespace tessera
