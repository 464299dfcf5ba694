#include "worker/optimizer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// One update of `numel` elements with their moments.
void Adam(const OptimizerOptions& options, int64_t update, double learning_rate, bool decay,
          int64_t numel, const float* gradient, float* parameter, float* m, float* v) {
  UpdateRun run;
  run.numel = numel;
  run.decay = decay;
  run.gradient = gradient;
  run.parameter = parameter;
  run.state = {m, v};
  UpdateElements(options, {.update = update, .learning_rate = learning_rate}, run);
}

TEST(AdamWTest, FirstStepMovesByTheLearningRateAgainstTheSign) {
  // m_hat = g and sqrt(v_hat) = |g| in the first step, so the move is lr x sign(g), whatever g is
  // (eps aside).
  const std::vector<float> gradient = {0.5f, -2.0f, 1e-3f};
  std::vector<float> parameter = {1.0f, 1.0f, 1.0f}, m(3, 0.0f), v(3, 0.0f);
  Adam({}, 1, 0.01, /*decay=*/false, 3, gradient.data(), parameter.data(), m.data(), v.data());
  EXPECT_NEAR(parameter[0], 0.99, 1e-6);
  EXPECT_NEAR(parameter[1], 1.01, 1e-6);
  EXPECT_NEAR(parameter[2], 0.99, 1e-6);
  EXPECT_FLOAT_EQ(m[1], -0.2f);         // (1 - 0.9) x -2
  EXPECT_FLOAT_EQ(v[1], 0.05f * 4.0f);  // (1 - 0.95) x 4
}

TEST(AdamWTest, WeightDecayIsDecoupled) {
  // No gradient: only the decay acts, and it does not go through the moments.
  const float gradient = 0;
  float parameter = 2.0f, m = 0, v = 0;
  Adam({}, 1, 0.5, /*decay=*/true, 1, &gradient, &parameter, &m, &v);
  EXPECT_FLOAT_EQ(parameter, 2.0f * (1 - 0.5f * 0.1f));
  EXPECT_EQ(m, 0);
  EXPECT_EQ(v, 0);
}

TEST(AdamWTest, FollowsTheFormulaOverManySteps) {
  double p = 0.3, m = 0, v = 0;
  float fp = 0.3f, fm = 0, fv = 0;
  for (int step = 1; step <= 50; ++step) {
    const double g = std::sin(step * 0.7) + 0.1 * p;
    const float fg = static_cast<float>(std::sin(step * 0.7) + 0.1 * fp);
    p *= 1 - 0.02 * 0.1;
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    p -=
        0.02 * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    Adam({}, step, 0.02, true, 1, &fg, &fp, &fm, &fv);
  }
  EXPECT_NEAR(fp, p, 2e-6);
}

TEST(AdamTest, WeightDecayGoesThroughTheMoments) {
  const float gradient = 0.25f;
  float parameter = 2.0f, m = 0, v = 0;
  OptimizerOptions options;
  options.kind = OptimizerKind::kAdam;
  options.weight_decay = 0.5;
  Adam(options, 1, 0.01, /*decay=*/true, 1, &gradient, &parameter, &m, &v);
  // The gradient is 0.25 + 0.5 x 2 = 1.25; the first step moves by the learning rate.
  EXPECT_FLOAT_EQ(m, 0.125f);
  EXPECT_NEAR(parameter, 1.99, 1e-6);
}

TEST(SgdTest, MomentumAddsUp) {
  OptimizerOptions options;
  options.kind = OptimizerKind::kSgd;
  options.momentum = 0.5;
  const float gradient = 1.0f;
  float parameter = 10.0f, buffer = 0;
  UpdateRun run;
  run.numel = 1;
  run.gradient = &gradient;
  run.parameter = &parameter;
  run.state = {&buffer, nullptr};
  for (int64_t update = 1; update <= 3; ++update) {
    UpdateElements(options, {.update = update, .learning_rate = 1}, run);
  }
  // Moves of 1, 1.5 and 1.75.
  EXPECT_EQ(parameter, 10 - 4.25f);
  EXPECT_EQ(buffer, 1.75f);
}

TEST(SgdTest, WithoutMomentumNoStateIsNeeded) {
  OptimizerOptions options;
  options.kind = OptimizerKind::kSgd;
  options.weight_decay = 0.5;
  const float gradient = 1.0f;
  float parameter = 4.0f;
  UpdateRun run;
  run.numel = 1;
  run.decay = true;
  run.gradient = &gradient;
  run.parameter = &parameter;
  UpdateElements(options, {.learning_rate = 0.5, .gradient_scale = 0.25}, run);
  EXPECT_EQ(parameter, 4 - 0.5f * (0.25f + 2.0f));
}

TEST(OptimizerTest, CopyIsTheNewParameterRounded) {
  // 1 - 2^-9 lies between the bfloat16 neighbours 1 - 2^-8 and 1 at the same distance: to the even
  // one, 1.
  for (const DType dtype : {v1::BFLOAT16, v1::FLOAT16}) {
    OptimizerOptions options;
    options.kind = OptimizerKind::kSgd;
    const float gradient = 0x1p-9f;
    float parameter = 1.0f;
    uint16_t copy = 0;
    UpdateRun run;
    run.numel = 1;
    run.gradient = &gradient;
    run.parameter = &parameter;
    run.copy = &copy;
    run.copy_dtype = dtype;
    UpdateElements(options, {.learning_rate = 1}, run);
    EXPECT_EQ(parameter, 1 - 0x1p-9f);
    EXPECT_EQ(copy, dtype == v1::BFLOAT16 ? 0x3f80 : 0x3bfc);
  }
}

TEST(OptimizerTest, Float64IsUpdatedInFloat64) {
  const double gradient = 1e-12;
  double parameter = 1;
  float copy = 0;
  OptimizerOptions options;
  options.kind = OptimizerKind::kSgd;
  UpdateRun run;
  run.numel = 1;
  run.gradient = &gradient;
  run.gradient_dtype = run.parameter_dtype = v1::FLOAT64;
  run.parameter = &parameter;
  run.copy = &copy;
  run.copy_dtype = v1::FLOAT32;
  UpdateElements(options, {.learning_rate = 1}, run);
  EXPECT_EQ(parameter, 1 - 1e-12);
  EXPECT_EQ(copy, 1.0f);
}

// The moments are float32, so only the parameter is rounded: 1 - 2^-9 is a tie of bfloat16, which
// goes to 1, and the copy is of what is stored.
TEST(OptimizerTest, NarrowMastersAreRoundedOnceAndTheirMomentsAreNot) {
  const uint16_t gradient = 0x3c00;  // of float16: 1
  uint16_t parameter = 0x3f80;       // of bfloat16: 1
  float copy = 0, buffer = 0.25f;
  OptimizerOptions options;
  options.kind = OptimizerKind::kSgd;
  options.momentum = 0.5;
  UpdateRun run;
  run.numel = 1;
  run.gradient = &gradient;
  run.gradient_dtype = v1::FLOAT16;
  run.parameter = &parameter;
  run.parameter_dtype = v1::BFLOAT16;
  run.state = {&buffer, nullptr};
  run.copy = &copy;
  run.copy_dtype = v1::FLOAT32;
  UpdateElements(options, {.learning_rate = 0x1p-9 / 1.125}, run);
  EXPECT_EQ(buffer, 1.125f);
  EXPECT_EQ(parameter, 0x3f80);
  EXPECT_EQ(copy, 1.0f);
}

TEST(OptimizerTest, LongRunsOfOtherDTypesAreAsShortOnes) {
  constexpr int64_t kNumel = 2500;  // more than two blocks
  std::vector<double> gradient(kNumel), parameter(kNumel, 1), m(kNumel), v(kNumel);
  for (int64_t i = 0; i < kNumel; ++i) gradient[i] = std::sin(static_cast<double>(i));
  const auto run_of = [&](int64_t first, int64_t numel) {
    UpdateRun run;
    run.numel = numel;
    run.gradient = gradient.data() + first;
    run.parameter = parameter.data() + first;
    run.gradient_dtype = run.parameter_dtype = v1::FLOAT64;
    run.state = {m.data() + first, v.data() + first};
    return run;
  };
  UpdateElements({}, {.learning_rate = 0.1}, run_of(0, kNumel));
  const std::vector<double> whole = parameter;
  std::fill(parameter.begin(), parameter.end(), 1);
  std::fill(m.begin(), m.end(), 0);
  std::fill(v.begin(), v.end(), 0);
  for (int64_t i = 0; i < kNumel; i += 100)
    UpdateElements({}, {.learning_rate = 0.1}, run_of(i, 100));
  EXPECT_EQ(parameter, whole);
  EXPECT_NE(whole[1], whole[2400]);
}

TEST(UpdateElementsTest, EveryInstructionSetGivesTheSameBits) {
  constexpr int64_t kNumel = 1003;
  std::mt19937 random(3);
  std::vector<float> gradient(kNumel), start(kNumel);
  for (float& value : gradient) value = static_cast<float>(random()) * 0x1p-31f - 1;
  for (float& value : start) value = static_cast<float>(random()) * 0x1p-31f - 1;
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kSgd}) {
    OptimizerOptions options;
    options.kind = kind;
    options.momentum = 0.9;
    std::vector<float> first;
    std::vector<uint16_t> first_copy;
    for (const InstructionSet set : UsableInstructionSets()) {
      std::vector<float> parameter = start, m(kNumel), v(kNumel);
      std::vector<uint16_t> copy(kNumel);
      for (int64_t update = 1; update <= 3; ++update) {
        UpdateRun run;
        run.numel = kNumel;
        run.decay = true;
        run.gradient = gradient.data();
        run.parameter = parameter.data();
        run.state = {m.data(), v.data()};
        run.copy = copy.data();
        run.copy_dtype = v1::BFLOAT16;
        UpdateElements(options, {.update = update, .learning_rate = 0.01}, run, set);
      }
      if (first.empty()) {
        first = parameter;
        first_copy = copy;
      }
      EXPECT_EQ(parameter, first) << InstructionSetName(set);
      EXPECT_EQ(copy, first_copy) << InstructionSetName(set);
    }
  }
}

}  // namespace
}  // namespace tessera
