// Every dtype of masters, gradients and reductions, with ranks as threads: the values that a step
// leaves behind, bit for bit.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/session/precision_model.h"

namespace tessera {
namespace {

// A row of FSDP's table of mixed precision (design/semantics 3.2; keep = true is the reduce dtype
// for every strategy).
struct Row {
  Precision precision;
  DType compute, reduce;
  DType gradient, kept;  // the reduced gradient's dtype without and with keep
};

const Row kRows[] = {
    {{"float32", "", ""}, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32},
    {{"float32", "float32", ""}, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32},
    {{"float32", "bfloat16", ""}, v1::BFLOAT16, v1::BFLOAT16, v1::FLOAT32, v1::BFLOAT16},
    {{"float32", "float16", ""}, v1::FLOAT16, v1::FLOAT16, v1::FLOAT32, v1::FLOAT16},
    {{"float32", "bfloat16", "float32"}, v1::BFLOAT16, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32},
    {{"float32", "bfloat16", "float16"}, v1::BFLOAT16, v1::FLOAT16, v1::FLOAT32, v1::FLOAT16},
    {{"float32", "", "bfloat16"}, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32, v1::BFLOAT16},
    {{"float32", "float32", "bfloat16"}, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32, v1::BFLOAT16},
    {{"bfloat16", "", ""}, v1::BFLOAT16, v1::BFLOAT16, v1::BFLOAT16, v1::BFLOAT16},
    {{"bfloat16", "bfloat16", "float32"}, v1::BFLOAT16, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32},
    {{"bfloat16", "", "float32"}, v1::BFLOAT16, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32},
    {{"bfloat16", "float32", ""}, v1::FLOAT32, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT32},
    {{"bfloat16", "float32", "bfloat16"}, v1::FLOAT32, v1::BFLOAT16, v1::BFLOAT16, v1::BFLOAT16},
    // Beyond FSDP's.
    {{"float64", "", ""}, v1::FLOAT64, v1::FLOAT64, v1::FLOAT64, v1::FLOAT64},
    {{"float64", "float32", ""}, v1::FLOAT32, v1::FLOAT32, v1::FLOAT64, v1::FLOAT32},
    {{"float64", "bfloat16", "float64"}, v1::BFLOAT16, v1::FLOAT64, v1::FLOAT64, v1::FLOAT64},
    {{"float16", "", "float32"}, v1::FLOAT16, v1::FLOAT32, v1::FLOAT16, v1::FLOAT32},
    {{"float32", "float64", "float32"}, v1::FLOAT64, v1::FLOAT32, v1::FLOAT32, v1::FLOAT32},
};

class PrecisionRowTest : public ::testing::TestWithParam<std::tuple<int, bool, std::string>> {};

// Rank 0 writes 1 + 2^-7 and rank 1 writes 1, both of which every dtype has. Their average, 1 +
// 2^-8, is halfway between two bfloat16, of which 1 is the even one; every other dtype has it.
TEST_P(PrecisionRowTest, GradientsAndParametersAreWhatTheTableSays) {
  const auto& [index, keep, unshard] = GetParam();
  const Row& row = kRows[index];
  Precision precision = row.precision;
  precision.keep = keep;
  const DType shard = keep ? row.kept : row.gradient;
  const double exact = 1 + 0x1p-8;
  const double gradient = row.reduce == v1::BFLOAT16 || shard == v1::BFLOAT16 ? 1 : exact;
  // 0.5 or 0.498046875, which every dtype has.
  const double parameter = 1 - 0.5 * gradient;

  const std::vector<PrecisionRun> runs =
      RunPrecision(PrecisionJob(precision, unshard), 2, {},
                   [](const GradientAt& at) { return at.rank == 0 ? 1 + 0x1p-7 : 1; });
  double squares = 0;
  for (const PrecisionRun& run : runs) {
    for (const char* unit : {"h.0", ""}) {
      EXPECT_EQ(run.gradient_dtypes.at(unit), shard);
      for (const double value : run.gradients.at(unit)) {
        if (value != 0) squares += value * value;
        EXPECT_TRUE(value == gradient || value == 0) << value;  // 0: padding
      }
    }
    for (const auto& [fqn, values] : run.parameters) {
      for (const double value : values) EXPECT_EQ(value, parameter) << fqn;
    }
    for (const auto& [fqn, dtype] : run.dtypes) {
      EXPECT_EQ(DTypeName(dtype), row.precision.original) << fqn;
    }
  }
  EXPECT_EQ(squares, 100 * gradient * gradient);
  EXPECT_DOUBLE_EQ(runs[0].steps[0].gradient_norm, 10 * gradient);
}

std::string RowName(const ::testing::TestParamInfo<PrecisionRowTest::ParamType>& info) {
  const auto& [index, keep, unshard] = info.param;
  const Precision& precision = kRows[index].precision;
  const auto name = [](const std::string& dtype) { return dtype.empty() ? "same" : dtype; };
  return absl::StrCat(precision.original, "_", name(precision.param), "_", name(precision.reduce),
                      keep ? "_kept_" : "_", unshard);
}

INSTANTIATE_TEST_SUITE_P(Table32, PrecisionRowTest,
                         ::testing::Combine(::testing::Range(0, static_cast<int>(std::size(kRows))),
                                            ::testing::Bool(),
                                            ::testing::Values("slots", "resident")),
                         RowName);

double Mixed(const GradientAt& at) {
  return 0.5 * at.parameter + 0.3 * std::sin(1.0 + static_cast<double>(at.element) + 7.0 * at.rank +
                                             31.0 * static_cast<double>(at.step));
}

// Loops in double over what AdamW does to the element of a parameter at `world_size`, where
// `round` makes a gradient or a parameter of the dtype that both have.
template <typename T, typename Round>
double AdamWReference(int world_size, int64_t steps, const std::string& fqn, int64_t element,
                      bool decays, double rate, Round round) {
  const double beta1 = 0.9, beta2 = 0.95;
  double parameter = 1;
  T m = 0, v = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    T sum = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      sum += static_cast<T>(round(Mixed({rank, step, 0, fqn, element, parameter})));
    }
    const T g = static_cast<T>(round(sum / static_cast<T>(world_size)));
    const T weight1 = static_cast<T>(1 - beta1), weight2 = static_cast<T>(1 - beta2);
    m = m + (g - m) * weight1;
    v = v * static_cast<T>(beta2) + weight2 * g * g;
    const T root = std::sqrt(v) / static_cast<T>(std::sqrt(1 - std::pow(beta2, step)));
    const T size = static_cast<T>(rate / (1 - std::pow(beta1, step)));
    const T keep = static_cast<T>(decays ? 1 - rate * 0.1 : 1);
    const T p = static_cast<T>(parameter) * keep - size * (m / (root + static_cast<T>(1e-8)));
    parameter = round(p);
  }
  return parameter;
}

v1::JobSpec AdamWJob(const std::string& original, const std::string& unshard) {
  v1::JobSpec job = PrecisionJob({.original = original, .param = "", .reduce = ""}, unshard);
  job.mutable_optimizer()->set_name("adamw");
  job.mutable_optimizer()->set_weight_decay(0.1);
  return job;
}

class PrecisionWorldTest : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(PrecisionWorldTest, Float64IsFloat64Throughout) {
  const auto& [world_size, unshard] = GetParam();
  PrecisionSteps steps;
  steps.steps = 5;
  steps.learning_rate = 0.01;
  const std::vector<PrecisionRun> runs =
      RunPrecision(AdamWJob("float64", unshard), world_size, steps, Mixed);
  for (const auto& [fqn, values] : runs[0].parameters) {
    const bool decays = fqn == "emb" || fqn == "h.0.w";
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], AdamWReference<double>(world_size, 5, fqn, static_cast<int64_t>(i),
                                                  decays, 0.01, [](double x) { return x; }))
          << fqn << " " << i;
    }
  }
  for (const PrecisionRun& run : runs) EXPECT_EQ(run.parameters, runs[0].parameters);
}

TEST_P(PrecisionWorldTest, BFloat16MastersAreUpdatedInFloat32AndRoundedOnce) {
  const auto& [world_size, unshard] = GetParam();
  PrecisionSteps steps;
  steps.steps = 5;
  steps.learning_rate = 0.01;
  const std::vector<PrecisionRun> runs =
      RunPrecision(AdamWJob("bfloat16", unshard), world_size, steps, Mixed);
  const auto round = [](double x) -> double {
    // Nearest of 8 bits, ties to even, by the definition.
    if (x == 0) return 0;
    int exponent = 0;
    std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(x, 8 - exponent)), exponent - 8);
  };
  for (const auto& [fqn, values] : runs[0].parameters) {
    const bool decays = fqn == "emb" || fqn == "h.0.w";
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], AdamWReference<float>(world_size, 5, fqn, static_cast<int64_t>(i),
                                                 decays, 0.01, round))
          << fqn << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, PrecisionWorldTest,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values("slots", "resident")));

// A shard of float64 is longer than a gradient slot of bfloat16 for two ranks.
TEST(PrecisionTest, MastersWiderThanTheirSlotsAreSummonedInPieces) {
  for (const int world_size : {1, 2, 3}) {
    const std::vector<PrecisionRun> runs = RunPrecision(
        PrecisionJob({.original = "float64", .param = "bfloat16", .reduce = "float64"}), world_size,
        {}, [](const GradientAt& at) { return static_cast<double>(at.element); });
    for (const PrecisionRun& run : runs) {
      EXPECT_EQ(run.dtypes.at("emb"), v1::FLOAT64);
      for (size_t i = 0; i < 55; ++i) EXPECT_EQ(run.parameters.at("emb")[i], 1 - 0.5 * i);
    }
  }
}

// Three micro-batches of 1, 2^-8 and 2^-8 on both ranks. bfloat16 loses what is half of its last
// bit, twice; float32 does not.
TEST(PrecisionTest, UnsynchronizedGradientsAreAccumulatedInTheDTypeAskedFor) {
  for (const bool in_reduce : {false, true}) {
    for (const char* unshard : {"slots", "resident"}) {
      v1::JobSpec job =
          PrecisionJob({.original = "float32", .param = "bfloat16", .reduce = "float32"}, unshard);
      job.mutable_memory()->set_accumulate_unsynchronized(true);
      job.mutable_mixed_precision()->set_unsynced_grad_dtype(in_reduce ? "reduce" : "compute");
      PrecisionSteps steps;
      steps.steps = 2;
      steps.micro_batches = 3;
      steps.unsynchronized = true;
      // b has a gradient in the second micro-batch alone, and that on rank 1 alone.
      steps.has_gradient = [](int rank, int64_t micro_batch, const std::string& fqn) {
        return fqn != "h.0.b" || (rank == 1 && micro_batch == 1);
      };
      const std::vector<PrecisionRun> runs = RunPrecision(
          job, 2, steps, [](const GradientAt& at) { return at.micro_batch == 0 ? 1 : 0x1p-8; });
      const double sum = in_reduce ? 1 + 0x1p-7 : 1;
      EXPECT_EQ(runs[0].parameters.at("emb")[54], 1 - 2 * 0.5 * sum) << in_reduce;
      EXPECT_EQ(runs[1].parameters.at("h.0.w")[34], 1 - 2 * 0.5 * sum) << in_reduce;
      EXPECT_EQ(runs[0].parameters.at("h.0.b")[4], 1 - 2 * 0.5 * 0x1p-9) << in_reduce;
    }
  }
}

// Each is reduced, and the reduced ones are added in the shard's dtype.
TEST(PrecisionTest, SynchronizedMicroBatchesAreAddedInTheShardsDType) {
  for (const bool keep : {false, true}) {
    PrecisionSteps steps;
    steps.micro_batches = 3;
    const std::vector<PrecisionRun> runs = RunPrecision(
        PrecisionJob({.original = "float32", .param = "bfloat16", .reduce = "", .keep = keep}), 2,
        steps, [](const GradientAt& at) { return at.micro_batch == 0 ? 1 : 0x1p-8; });
    EXPECT_EQ(runs[0].gradients.at("")[0], keep ? 1 : 1 + 0x1p-7);
  }
}

TEST(PrecisionTest, LossScaleIsDividedOutOfNormAndUpdate) {
  v1::JobSpec job = PrecisionJob({.original = "float32", .param = "float16", .reduce = ""});
  job.mutable_mixed_precision()->set_loss_scale("1024");
  job.mutable_optimizer()->set_clip_norm(5);
  const std::vector<PrecisionRun> runs =
      RunPrecision(job, 2, {}, [](const GradientAt&) { return 1024.0; });
  EXPECT_EQ(runs[0].loss_scales, std::vector<double>{1024});
  EXPECT_DOUBLE_EQ(runs[0].steps[0].gradient_norm, 10);  // of 100 ones
  // Clipped to half of them, but for the 1e-6 of clip_grad_norm_.
  EXPECT_NEAR(runs[0].parameters.at("emb")[0], 1 - 0.5 * 0.5, 1e-6);
}

// Rank 1 alone writes an infinity, in one unit, in the second of four steps.
TEST(PrecisionTest, OverflowOnOneRankSkipsTheStepOnAllAndHalvesTheScale) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    v1::JobSpec job = PrecisionJob({.original = "float32", .param = "float16", .reduce = ""});
    job.mutable_mixed_precision()->set_loss_scale("dynamic");
    PrecisionSteps steps;
    steps.steps = 4;
    steps.learning_rate = 0.125;
    const std::vector<PrecisionRun> runs = RunPrecision(job, 3, steps, [&](const GradientAt& at) {
      const bool overflows = at.rank == 1 && at.step == 2 && at.fqn == "h.0.w" && at.element == 3;
      return overflows ? bad : (at.step <= 2 ? 32768.0 : 16384.0);
    });
    for (const PrecisionRun& run : runs) {
      EXPECT_EQ(run.loss_scales, (std::vector<double>{65536, 65536, 32768, 32768}));
      for (size_t step = 0; step < 4; ++step) {
        EXPECT_EQ(run.steps[step].non_finite, step == 1) << step;
      }
      // Three steps of 0.125 x 0.5.
      for (const auto& [fqn, values] : run.parameters) {
        for (const double value : values) EXPECT_EQ(value, 1 - 3 * 0.0625) << fqn;
      }
    }
  }
}

TEST(PrecisionTest, DivideFactorTakesThePlaceOfTheNumberOfRanks) {
  for (const char* reduce : {"float64", "float32", "bfloat16", "float16"}) {
    v1::JobSpec job = PrecisionJob({.original = "float32", .param = "", .reduce = reduce});
    job.mutable_mixed_precision()->set_divide_factor(8);
    const std::vector<PrecisionRun> runs = RunPrecision(
        job, 3, {}, [](const GradientAt& at) { return static_cast<double>(at.rank + 1); });
    EXPECT_EQ(runs[0].gradients.at("")[0], 0.75) << reduce;  // (1 + 2 + 3) / 8
  }
}

struct MeshCase {
  const char* strategy;
  int replicas;
};
constexpr MeshCase kMeshes[] = {{"full_shard", 0},   {"shard_grad_op", 0},
                                {"no_shard", 0},     {"hybrid_shard", 2},
                                {"hybrid_shard", 4}, {"hybrid_shard_zero2", 2}};

v1::JobSpec OnMesh(v1::JobSpec job, const MeshCase& mesh) {
  job.mutable_mesh()->set_strategy(mesh.strategy);
  if (mesh.replicas > 0) job.mutable_mesh()->set_replicas(mesh.replicas);
  return job;
}

// pytorch #155903: the same sum, divided by the same, whatever the mesh.
TEST(PrecisionTest, DivideFactorIsTheSameOnEveryMesh) {
  for (const MeshCase& mesh : kMeshes) {
    for (const char* reduce : {"float32", "float16"}) {
      v1::JobSpec job =
          OnMesh(PrecisionJob({.original = "float32", .param = "", .reduce = reduce}), mesh);
      job.mutable_mixed_precision()->set_divide_factor(8);
      const std::vector<PrecisionRun> runs = RunPrecision(
          job, 4, {}, [](const GradientAt& at) { return static_cast<double>(at.rank + 1); });
      for (const PrecisionRun& run : runs) {
        EXPECT_EQ(run.gradients.at("")[0], 1.25) << mesh.strategy << mesh.replicas << reduce;
      }
    }
  }
}

// The three dtypes of the table that FSDP's code has differently by strategy.
TEST(PrecisionTest, KeptGradientsAreInTheReduceDTypeUnderEveryStrategy) {
  for (const MeshCase& mesh : kMeshes) {
    for (const Row& row : kRows) {
      Precision precision = row.precision;
      precision.keep = true;
      const std::vector<PrecisionRun> runs =
          RunPrecision(OnMesh(PrecisionJob(precision), mesh), 4, {},
                       [](const GradientAt& at) { return at.rank == 0 ? 1 + 0x1p-6 : 1; });
      // The average over four is 1 + 2^-8 again.
      const double gradient = row.reduce == v1::BFLOAT16 ? 1 : 1 + 0x1p-8;
      for (const PrecisionRun& run : runs) {
        EXPECT_EQ(run.gradient_dtypes.at(""), row.kept) << mesh.strategy;
        EXPECT_EQ(run.gradients.at("")[0], gradient) << mesh.strategy;
        EXPECT_EQ(run.parameters.at("emb")[54], 1 - 0.5 * gradient) << mesh.strategy;
      }
    }
  }
}

TEST(PrecisionTest, UnsynchronizedGradientsAreAccumulatedInReduceDTypeOnEveryMesh) {
  for (const MeshCase& mesh : kMeshes) {
    v1::JobSpec job = OnMesh(
        PrecisionJob({.original = "float32", .param = "bfloat16", .reduce = "float32"}), mesh);
    job.mutable_memory()->set_accumulate_unsynchronized(true);
    job.mutable_mixed_precision()->set_unsynced_grad_dtype("reduce");
    PrecisionSteps steps;
    steps.micro_batches = 3;
    steps.unsynchronized = true;
    const std::vector<PrecisionRun> runs = RunPrecision(
        job, 4, steps, [](const GradientAt& at) { return at.micro_batch == 0 ? 1 : 0x1p-8; });
    EXPECT_EQ(runs[3].gradients.at("")[0], 1 + 0x1p-7) << mesh.strategy;
  }
}

// FSDP's rule: under mixed precision a batch norm is a unit of its own, in full precision.
TEST(PrecisionTest, BatchNormStaysInFullPrecision) {
  v1::JobSpec job = PrecisionJob({.original = "float32", .param = "bfloat16", .reduce = ""});
  job.mutable_mixed_precision()->clear_ignored_classes();
  const std::vector<PrecisionRun> runs =
      RunPrecision(job, 2, {}, [](const GradientAt& at) { return at.rank == 0 ? 1 + 0x1p-9 : 1; });
  // 1 + 2^-9 is 1 in bfloat16; the average over both ranks in float32 is 1 + 2^-10.
  EXPECT_EQ(runs[0].parameters.at("bn.weight")[0], 1 - 0.5 * (1 + 0x1p-10));
  EXPECT_EQ(runs[0].parameters.at("h.0.w")[0], 0.5);
  EXPECT_EQ(runs[0].parameters.at("emb")[0], 0.5);
}

}  // namespace
}  // namespace tessera
