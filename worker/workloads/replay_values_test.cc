#include "worker/workloads/replay_values.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/float_bits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct Dtypes {
  DType param = v1::FLOAT32;
  DType reduce = v1::FLOAT32;
  DType gradient = v1::FLOAT32;
};

v1::Unit UnitOf(const Dtypes& dtypes) {
  v1::Unit unit;
  unit.set_fqn("h.0");
  unit.set_original_dtype(dtypes.gradient);
  unit.set_param_dtype(dtypes.param);
  unit.set_reduce_dtype(dtypes.reduce);
  unit.set_gradient_dtype(dtypes.gradient);
  unit.set_unsynced_gradient_dtype(dtypes.param);
  v1::UnitParameter* parameter = unit.add_parameters();
  parameter->set_fqn("h.0.w");
  parameter->set_numel(500);
  parameter->set_requires_grad(true);
  return unit;
}

v1::JobSpec Job(int64_t micro_batches = 1, double divide_factor = 0) {
  v1::JobSpec job;
  job.set_micro_batches(micro_batches);
  job.mutable_mixed_precision()->set_divide_factor(divide_factor);
  return job;
}

double Rounded(double value, DType dtype) {
  if (dtype == v1::FLOAT64) return value;
  const auto single = static_cast<float>(value);
  if (dtype == v1::BFLOAT16) return FloatFromBFloat16(BFloat16FromFloat(single));
  if (dtype == v1::FLOAT16) return FloatFromFloat16(Float16FromFloat(single));
  return single;
}

int64_t LargestOf(const Dtypes& dtypes, int world_size, int64_t micro_batches = 1,
                  int64_t uses = 1) {
  const auto rule = MakeReplayRule(UnitOf(dtypes), Job(micro_batches), world_size, uses);
  EXPECT_TRUE(rule.ok()) << rule.status();
  EXPECT_EQ(rule->factor, world_size);
  return rule->largest;
}

TEST(ReplayValuesTest, IntegersAreAsLargeAsTheDtypesHaveExactly) {
  EXPECT_EQ(LargestOf({}, 1), 65'536);
  EXPECT_EQ(LargestOf({}, 4), 16'384);
  // 4 x 64 = 256, the last integer of a run that bfloat16 has whole.
  EXPECT_EQ(LargestOf({v1::BFLOAT16, v1::FLOAT32, v1::FLOAT32}, 4), 64);
  EXPECT_EQ(LargestOf({v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32}, 4), 64);
  EXPECT_EQ(LargestOf({v1::FLOAT32, v1::FLOAT32, v1::BFLOAT16}, 3), 85);
  EXPECT_EQ(LargestOf({v1::FLOAT16, v1::FLOAT16, v1::FLOAT32}, 3), 682);
  EXPECT_EQ(LargestOf({v1::FLOAT64, v1::FLOAT64, v1::FLOAT64}, 2), 32'768);
  // Four terms: two micro-batches of two uses.
  EXPECT_EQ(LargestOf({v1::BFLOAT16, v1::BFLOAT16, v1::FLOAT32}, 2, 2, 2), 32);
}

TEST(ReplayValuesTest, TiedNamesAreTermsToo) {
  v1::Unit unit = UnitOf({v1::BFLOAT16, v1::FLOAT32, v1::FLOAT32});
  unit.mutable_parameters(0)->add_tied_fqns("head.weight");
  EXPECT_EQ(MakeReplayRule(unit, Job(), 4, 1)->largest, 32);
}

TEST(ReplayValuesTest, StreamsDifferByWhatTheyDependOn) {
  const ReplayRule rule = {.factor = 2, .largest = 1'000'000};
  ReplayPass pass;
  std::set<std::vector<int64_t>> seen;
  const auto expect_new = [&](const ReplayPass& of, const char* fqn) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < 8; ++i) values.push_back(rule.Stream(of, fqn).At(i));
    EXPECT_EQ(std::set<int64_t>(values.begin(), values.end()).size(), 8u);
    EXPECT_TRUE(seen.insert(values).second) << fqn;
  };
  expect_new(pass, "w");
  expect_new(pass, "b");
  for (const auto member :
       {&ReplayPass::seed, &ReplayPass::step, &ReplayPass::micro_batch, &ReplayPass::use}) {
    ReplayPass other = pass;
    other.*member += 1;
    expect_new(other, "w");
  }
  pass.rank = 1;
  expect_new(pass, "w");
}

TEST(ReplayValuesTest, IntegersFillTheirRangeAndNoMore) {
  const ReplayStream stream(12345, 3);
  std::vector<int> counts(7);
  for (int64_t i = 0; i < 70'000; ++i) {
    const int64_t value = stream.At(i);
    ASSERT_LE(std::abs(value), 3);
    ++counts[static_cast<size_t>(value + 3)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
  // Elements beyond 2^32 are others.
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) same += stream.At(i) == stream.At(i + (int64_t{1} << 32));
  EXPECT_LT(same, 50);
}

TEST(ReplayValuesTest, SomeRanksHaveNoGradientOfAParameterOrAUnit) {
  int none = 0, unit_none = 0;
  ReplayPass pass;
  for (pass.step = 1; pass.step <= 2'000; ++pass.step) {
    const bool w = ReplayRule::Contributes(pass, "h.0", "w");
    none += !w;
    bool any = w;
    for (const char* fqn : {"b", "c", "d", "e"})
      any = any || ReplayRule::Contributes(pass, "h.0", fqn);
    unit_none += !any;
  }
  // 1/16 and 15/16 x 1/8 of 2,000; and 1/16.
  EXPECT_NEAR(none, 2'000 * (1.0 / 16 + 15.0 / 128), 60);
  EXPECT_NEAR(unit_none, 2'000 / 16, 40);
}

// What ranks write, summed in rank order in float32, divided before and after the sum, rounded to
// reduce_dtype and then to the shard's.
struct Case {
  Dtypes dtypes;
  int world_size = 1;
  int64_t uses = 1;
  double divide_factor = 0;
};

void ExpectExact(const Case& of) {
  const v1::Unit unit = UnitOf(of.dtypes);
  const auto rule = MakeReplayRule(unit, Job(1, of.divide_factor), of.world_size, of.uses);
  ASSERT_TRUE(rule.ok()) << rule.status();
  const int64_t numel = unit.parameters(0).numel();
  std::vector<std::vector<double>> gradients;
  ReplayPass pass;
  pass.seed = 7;
  pass.step = 3;
  for (pass.rank = 0; pass.rank < of.world_size; ++pass.rank) {
    std::vector<double> memory(static_cast<size_t>(numel));  // large enough for any dtype
    const TensorView view = {
        .data = memory.data(), .dtype = of.dtypes.param, .shape = {numel}, .numel = numel};
    for (pass.use = 0; pass.use < of.uses; ++pass.use) {
      if (!ReplayRule::Contributes(pass, unit.fqn(), "h.0.w")) continue;
      WriteReplay(rule->Stream(pass, "h.0.w"), rule->factor, /*add=*/true, view);
    }
    std::vector<double>& widened = gradients.emplace_back();
    for (int64_t i = 0; i < numel; ++i) {
      widened.push_back(ElementAt(view.data, view.dtype, i));
      if (of.divide_factor == 0) {
        ASSERT_LE(std::abs(widened.back()), of.dtypes.param == v1::BFLOAT16 ? 256 : 65'536);
      }
    }
  }
  std::vector<int64_t> expected(static_cast<size_t>(numel));
  const ReplayStep step = {.seed = 7, .step = 3, .world_size = of.world_size, .uses = of.uses};
  ExpectReplay(*rule, step, unit.fqn(), unit.parameters(0), 0, absl::MakeSpan(expected));
  int64_t nonzero = 0;
  // A division before the sum: none, powers of two, and all of it.
  for (const double before : {1.0, 2.0, 4.0, rule->factor}) {
    for (size_t i = 0; i < expected.size(); ++i) {
      double sum = 0;
      for (const std::vector<double>& gradient : gradients) {
        sum += static_cast<float>(gradient[i]) / static_cast<float>(before);
        sum = static_cast<float>(sum);
      }
      const float average = static_cast<float>(sum) / static_cast<float>(rule->factor / before);
      const double shard = Rounded(Rounded(average, of.dtypes.reduce), of.dtypes.gradient);
      ASSERT_EQ(shard, static_cast<double>(expected[i]))
          << "element " << i << ", ranks " << of.world_size << ", before " << before;
      nonzero += expected[i] != 0;
    }
  }
  // Of few ranks none may have a gradient.
  if (of.world_size > 2) {
    EXPECT_GT(nonzero, 0);
  }
}

TEST(ReplayValuesTest, AveragesAreExactInEveryDtypeUnderAnyDivision) {
  const std::vector<DType> all = {v1::FLOAT64, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16};
  for (const DType param : all) {
    for (const DType reduce : all) {
      for (const DType gradient : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
        for (const int world_size : {1, 2, 3, 4, 5, 6, 7, 8, 12}) {
          SCOPED_TRACE(
              absl::StrCat(DTypeName(param), " ", DTypeName(reduce), " ", DTypeName(gradient)));
          ExpectExact({.dtypes = {param, reduce, gradient}, .world_size = world_size});
        }
      }
    }
  }
}

TEST(ReplayValuesTest, AveragesAreExactWithUsesAndFactorsOfOnesOwn) {
  for (const double factor : {0.0, 1.0, 0.5, 3.0, 2.5, 6.0, 64.0}) {
    for (const DType param : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
      ExpectExact({.dtypes = {param, param, v1::FLOAT32},
                   .world_size = 3,
                   .uses = 2,
                   .divide_factor = factor});
    }
  }
}

TEST(ReplayValuesTest, ExpectationStartsWhereItIsAsked) {
  const v1::Unit unit = UnitOf({});
  const ReplayRule rule = {.factor = 2, .largest = 100};
  const ReplayStep step = {.step = 2, .world_size = 2};
  std::vector<int64_t> whole(100), part(40);
  ExpectReplay(rule, step, unit.fqn(), unit.parameters(0), 0, absl::MakeSpan(whole));
  ExpectReplay(rule, step, unit.fqn(), unit.parameters(0), 60, absl::MakeSpan(part));
  EXPECT_EQ(part, std::vector<int64_t>(whole.begin() + 60, whole.end()));
}

TEST(ReplayValuesTest, FrozenParametersHaveNone) {
  v1::Unit unit = UnitOf({});
  unit.mutable_parameters(0)->set_requires_grad(false);
  std::vector<int64_t> sums(10, 5);
  ExpectReplay({.factor = 2, .largest = 100}, {.world_size = 2}, unit.fqn(), unit.parameters(0), 0,
               absl::MakeSpan(sums));
  EXPECT_EQ(sums, std::vector<int64_t>(10, 0));
}

TEST(ReplayValuesTest, RefusesWhatNothingIsExactIn) {
  const auto refused = [](const Dtypes& dtypes, const v1::JobSpec& job, int world_size) {
    return MakeReplayRule(UnitOf(dtypes), job, world_size, 1).status();
  };
  const absl::Status odd = refused({}, Job(1, 0.1), 2);
  EXPECT_EQ(Field(odd), "mixed_precision.divide_factor");
  EXPECT_THAT(odd.message(), HasSubstr("that a float32 has exactly"));
  EXPECT_EQ(Field(refused({v1::BFLOAT16, v1::FLOAT32, v1::FLOAT32}, Job(1, 257), 2)),
            "mixed_precision.divide_factor");
  EXPECT_EQ(Field(refused({v1::FLOAT16, v1::FLOAT16, v1::FLOAT32}, Job(1, 65'536), 2)),
            "mixed_precision.divide_factor");
  v1::JobSpec scaled = Job();
  scaled.mutable_mixed_precision()->set_loss_scale("1000");
  EXPECT_EQ(MakeReplayRule(UnitOf({}), scaled, 2, 1)->largest, 65'536 / 2 / 125);
  scaled.mutable_mixed_precision()->set_loss_scale("65536");
  EXPECT_EQ(Field(refused({v1::FLOAT16, v1::FLOAT16, v1::FLOAT32}, scaled, 2)),
            "mixed_precision.loss_scale");
  scaled.mutable_mixed_precision()->set_loss_scale("dynamic");
  EXPECT_TRUE(refused({v1::FLOAT16, v1::FLOAT16, v1::FLOAT32}, scaled, 2).ok());
  const absl::Status many = refused({v1::BFLOAT16, v1::FLOAT32, v1::FLOAT32}, Job(200), 2);
  EXPECT_EQ(Field(many), "micro_batches");
  EXPECT_THAT(many.message(), HasSubstr("unit h.0"));
}

}  // namespace
}  // namespace tessera
