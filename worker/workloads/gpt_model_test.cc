// The whole model against the double reference, and the reference against finite differences of
// itself.
#include "worker/workloads/gpt_model.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/workloads/gpt_reference.h"
#include "worker/workloads/gpt_test_util.h"

namespace tessera {
namespace {

constexpr GptShape kTiny = {
    .layers = 2, .width = 32, .heads = 4, .context = 16, .vocab = 64, .sequences = 3};

struct Case {
  explicit Case(const GptShape& case_shape) : shape(case_shape), floats(shape) {
    doubles.shape = shape;
    doubles.blocks.resize(static_cast<size_t>(shape.layers));
    const auto fill = [](const std::string& name, std::vector<float>& values) {
      values = RandomValues(name, static_cast<int64_t>(values.size()), 0.3f);
      // Norm weights around 1, so that no layer starts at nothing.
      if (name.find("ln_") != std::string::npos && name.find("weight") != std::string::npos) {
        for (float& value : values) value += 1;
      }
      return InDouble(values);
    };
    for (int i = 0; i < kRootParameters; ++i) {
      doubles.root[i] = fill(kRootParameterNames[i], floats.root[i]);
    }
    for (size_t layer = 0; layer < doubles.blocks.size(); ++layer) {
      for (int i = 0; i < kBlockParameters; ++i) {
        const std::string name = "h." + std::to_string(layer) + "." + kBlockParameterNames[i];
        doubles.blocks[layer][i] = fill(name, floats.blocks[layer][i]);
      }
    }
    const RandomStream draws(1, StreamId("tokens"));
    for (int64_t i = 0; i < shape.sequences * shape.context; ++i) {
      tokens.push_back(static_cast<int32_t>(draws.Below(2 * i, shape.vocab)));
      targets.push_back(static_cast<int32_t>(draws.Below(2 * i + 1, shape.vocab)));
    }
    scale = 1.0f / static_cast<float>(tokens.size());
  }
  reference::Model ReferenceGradients() const {
    reference::Model gradients;
    gradients.shape = shape;
    gradients.blocks.resize(doubles.blocks.size());
    doubles.Run(tokens, targets, scale, &gradients);
    return gradients;
  }

  GptShape shape;
  reference::Model doubles;
  FloatModel floats;
  std::vector<int32_t> tokens, targets;
  float scale = 0;
};

// The key's bias has no gradient: it adds the same to every score of a query. What rounding leaves
// of it is held against the query's bias.
void ExpectBiasNear(const std::vector<float>& actual, const reference::Values& expected,
                    int64_t width, const std::string& what) {
  const auto part = [&](int64_t i) {
    return reference::Values(expected.begin() + i * width, expected.begin() + (i + 1) * width);
  };
  const reference::Values query = part(0), key = part(1), value = part(2);
  ExpectNear(actual.data(), query, what + " (query)");
  ExpectNear(actual.data() + 2 * width, value, what + " (value)");
  for (int64_t i = 0; i < width; ++i) {
    EXPECT_LE(std::abs(key[i]), 1e-14 * Largest(query));
    EXPECT_LE(std::abs(actual[width + i]), 1e-6 * Largest(query)) << what << " (key) " << i;
  }
}

void ExpectGradientsNear(const FloatModel& actual, const reference::Model& expected) {
  for (int i = 0; i < kRootParameters; ++i) {
    ExpectNear(actual.root[i], expected.root[i], kRootParameterNames[i]);
  }
  for (size_t layer = 0; layer < expected.blocks.size(); ++layer) {
    for (int i = 0; i < kBlockParameters; ++i) {
      const std::string name = "h." + std::to_string(layer) + "." + kBlockParameterNames[i];
      const reference::Values& values = expected.blocks[layer][i];
      if (values.empty()) continue;  // attention is left out
      if (i == kAttnBias) {
        ExpectBiasNear(actual.blocks[layer][i], values, expected.shape.width, name);
      } else {
        ExpectNear(actual.blocks[layer][i], values, name);
      }
    }
  }
}

class GptModelTest : public ::testing::TestWithParam<GptShape> {};

TEST_P(GptModelTest, LossAndGradientsMatchReference) {
  const Case c(GetParam());
  auto model = GptModel::Create(c.shape);
  ASSERT_TRUE(model.ok()) << model.status();
  FloatModel gradients(c.shape);
  const auto loss = RunModel(**model, c.floats, c.tokens, c.targets, c.scale, &gradients);
  ASSERT_TRUE(loss.ok()) << loss.status();
  const double expected = c.doubles.Run(c.tokens, c.targets, c.scale, nullptr);
  EXPECT_NEAR(*loss, expected, 1e-6 * expected);
  ExpectGradientsNear(gradients, c.ReferenceGradients());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GptModelTest,
    ::testing::Values(
        kTiny,
        // Extents that fill no vector register.
        GptShape{.layers = 3, .width = 21, .heads = 3, .context = 7, .vocab = 29, .sequences = 2},
        GptShape{.layers = 1, .width = 8, .heads = 1, .context = 1, .vocab = 5, .sequences = 1},
        GptShape{.layers = 2,
                 .width = 32,
                 .heads = 4,
                 .context = 16,
                 .vocab = 64,
                 .sequences = 3,
                 .attention = false},
        // The job's defaults, fewer sequences.
        GptShape{
            .layers = 4, .width = 128, .heads = 4, .context = 64, .vocab = 256, .sequences = 2}));

TEST(GptModelTest, SecondPassAccumulatesAndRepeatsBitForBit) {
  const Case c(kTiny);
  auto model = GptModel::Create(c.shape);
  ASSERT_TRUE(model.ok()) << model.status();
  FloatModel once(c.shape), again(c.shape), twice(c.shape);
  const double loss = RunModel(**model, c.floats, c.tokens, c.targets, c.scale, &once).value();
  EXPECT_EQ(RunModel(**model, c.floats, c.tokens, c.targets, c.scale, &again).value(), loss);
  EXPECT_EQ(once.root, again.root);
  EXPECT_EQ(once.blocks, again.blocks);

  twice.blocks = once.blocks;
  ASSERT_TRUE(RunModel(**model, c.floats, c.tokens, c.targets, c.scale, &twice, true).ok());
  for (size_t layer = 0; layer < once.blocks.size(); ++layer) {
    for (int i = 0; i < kBlockParameters; ++i) {
      for (size_t j = 0; j < once.blocks[layer][i].size(); ++j) {
        ASSERT_EQ(twice.blocks[layer][i][j], 2 * once.blocks[layer][i][j]);
      }
    }
  }
}

TEST(GptModelTest, ComputedAgainItIsTheSameBitForBit) {
  for (const bool attention : {true, false}) {
    GptShape shape = kTiny;
    shape.attention = attention;
    const Case c(shape);
    GptShape again = shape;
    again.recompute = true;
    auto keeps = GptModel::Create(shape), recomputes = GptModel::Create(again);
    ASSERT_TRUE(keeps.ok() && recomputes.ok());
    FloatModel kept(shape), recomputed(shape);
    EXPECT_EQ(RunModel(**keeps, c.floats, c.tokens, c.targets, c.scale, &kept).value(),
              RunModel(**recomputes, c.floats, c.tokens, c.targets, c.scale, &recomputed).value());
    EXPECT_EQ(kept.root, recomputed.root);
    EXPECT_EQ(kept.blocks, recomputed.blocks);
    EXPECT_LT((*recomputes)->activation_bytes(), (*keeps)->activation_bytes());
  }
}

TEST(GptModelTest, MaskedTargetsDoNotCount) {
  Case c(kTiny);
  for (int64_t i = 0; i < c.shape.context; ++i) c.targets[i] = -1;  // the first sequence
  auto model = GptModel::Create(c.shape);
  ASSERT_TRUE(model.ok()) << model.status();
  FloatModel gradients(c.shape);
  const auto loss = RunModel(**model, c.floats, c.tokens, c.targets, c.scale, &gradients);
  ASSERT_TRUE(loss.ok()) << loss.status();
  const double expected = c.doubles.Run(c.tokens, c.targets, c.scale, nullptr);
  EXPECT_NEAR(*loss, expected, 1e-6 * expected);
  ExpectGradientsNear(gradients, c.ReferenceGradients());
}

TEST(GptModelTest, RefusesWhatMakesNoModel) {
  GptShape shape = kTiny;
  shape.heads = 5;
  EXPECT_EQ(GptModel::Create(shape).status().code(), absl::StatusCode::kInvalidArgument);
  shape = kTiny;
  shape.sequences = 0;
  EXPECT_EQ(GptModel::Create(shape).status().code(), absl::StatusCode::kInvalidArgument);

  const Case c(kTiny);
  auto model = GptModel::Create(c.shape);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<int32_t> tokens = c.tokens;
  tokens[5] = 64;  // the vocabulary has 64
  EXPECT_EQ((*model)->EmbedForward(c.floats.Root(), tokens).code(),
            absl::StatusCode::kInvalidArgument);
  tokens[5] = -1;
  EXPECT_EQ((*model)->EmbedForward(c.floats.Root(), tokens).code(),
            absl::StatusCode::kInvalidArgument);
  tokens.pop_back();
  EXPECT_EQ((*model)->HeadForward(c.floats.Root(), tokens).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*model)->BlockForward(2, c.floats.Block(0)).code(),
            absl::StatusCode::kInvalidArgument);
}

// What the float32 model is held against is itself right: its gradient along a direction is the
// difference quotient of its loss. Central differences with h = 1e-5 are good to about 1e-9 here.
TEST(GptReferenceTest, GradientsAreFiniteDifferences) {
  for (const bool attention : {true, false}) {
    GptShape shape = {
        .layers = 2, .width = 12, .heads = 2, .context = 5, .vocab = 17, .sequences = 2};
    shape.attention = attention;
    const Case c(shape);
    const reference::Model gradients = c.ReferenceGradients();
    const auto check = [&](const std::string& name, const reference::Values& gradient,
                           auto parameter) {
      if (gradient.empty()) return;
      const auto direction =
          InDouble(RandomValues("along " + name, static_cast<int64_t>(gradient.size())));
      const auto loss_at = [&](double h) {
        reference::Model moved = c.doubles;
        reference::Values& values = parameter(moved);
        for (size_t i = 0; i < values.size(); ++i) values[i] += h * direction[i];
        return c.scale * moved.Run(c.tokens, c.targets, c.scale, nullptr);
      };
      double expected = 0;
      for (size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
      const double quotient = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
      EXPECT_NEAR(quotient, expected, 1e-8 + 1e-7 * std::abs(expected)) << name;
    };
    for (int i = 0; i < kRootParameters; ++i) {
      check(
          kRootParameterNames[i],
          gradients.root[i], [i](reference::Model & m) -> auto& { return m.root[i]; });
    }
    for (size_t layer = 0; layer < gradients.blocks.size(); ++layer) {
      for (int i = 0; i < kBlockParameters; ++i) {
        check(
            "h." + std::to_string(layer) + "." + kBlockParameterNames[i],
            gradients.blocks[layer][i],
            [ layer, i ](reference::Model & m) -> auto& { return m.blocks[layer][i]; });
      }
    }
  }
}

}  // namespace
}  // namespace tessera
