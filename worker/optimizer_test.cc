#include "worker/optimizer.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(AdamWTest, FirstStepMovesByTheLearningRateAgainstTheSign) {
  // m_hat = g and sqrt(v_hat) = |g| in the first step, so the move is lr x sign(g), whatever g is (eps aside).
  const std::vector<float> gradient = {0.5f, -2.0f, 1e-3f};
  std::vector<float> parameter = {1.0f, 1.0f, 1.0f}, m(3, 0.0f), v(3, 0.0f);
  AdamW({}, 1, 0.01, /*decay=*/false, 3, gradient.data(), parameter.data(), m.data(), v.data());
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
  AdamW({.weight_decay = 0.1}, 1, 0.5, /*decay=*/true, 1, &gradient, &parameter, &m, &v);
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
    AdamW({}, step, 0.02, true, 1, &fg, &fp, &fm, &fv);
  }
  EXPECT_NEAR(fp, p, 2e-6);
}

}  // namespace
}  // namespace tessera
