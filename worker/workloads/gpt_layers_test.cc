// Each layer, forward and backward, against the double reference: within 1e-5 of the reference
// tensor's largest.
#include "worker/workloads/gpt_layers.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/workloads/gpt_reference.h"
#include "worker/workloads/gpt_test_util.h"

namespace tessera {
namespace {

using reference::Values;

#define ASSERT_OK(expression)                  \
  do {                                         \
    const absl::Status& status = (expression); \
    ASSERT_TRUE(status.ok()) << status;        \
  } while (false)

class LinearLayerTest : public ::testing::TestWithParam<WeightOrder> {};

TEST_P(LinearLayerTest, MatchesReference) {
  const WeightOrder order = GetParam();
  const bool has_bias = order == WeightOrder::kInOut;
  const reference::Linear expected{96, 40, 56, order == WeightOrder::kOutIn};
  auto layer = LinearLayer::Create({96, 40, 56, order, has_bias});
  ASSERT_OK(layer.status());
  const auto x = RandomValues("x", 96 * 40), w = RandomValues("w", 40 * 56),
             b = RandomValues("b", has_bias ? 56 : 0), dy = RandomValues("dy", 96 * 56);

  std::vector<float> y(96 * 56), dx(96 * 40), dw(40 * 56), db(56);
  ASSERT_OK(layer->Forward(x.data(), w.data(), b.data(), y.data()));
  ASSERT_OK(layer->BackwardInput(w.data(), dy.data(), dx.data()));
  ASSERT_OK(layer->BackwardParameters(x.data(), dy.data(), {dw.data()}, {db.data()}));

  ExpectNear(y, expected.Forward(InDouble(x), InDouble(w), InDouble(b)), "y");
  Values ref_dx, ref_dw, ref_db;
  expected.Backward(InDouble(x), InDouble(w), InDouble(dy), ref_dx, ref_dw, ref_db);
  ExpectNear(dx, ref_dx, "dx");
  ExpectNear(dw, ref_dw, "dw");
  if (has_bias) ExpectNear(db, ref_db, "db");
}

INSTANTIATE_TEST_SUITE_P(BothOrders, LinearLayerTest,
                         ::testing::Values(WeightOrder::kInOut, WeightOrder::kOutIn));

TEST(LinearLayerTest, AccumulatesOrLeavesOutAsAsked) {
  auto layer = LinearLayer::Create({.rows = 8, .in = 4, .out = 4});
  ASSERT_OK(layer.status());
  const auto x = RandomValues("x", 32), dy = RandomValues("dy", 32);
  std::vector<float> dw(16), db(4);
  ASSERT_OK(layer->BackwardParameters(x.data(), dy.data(), {dw.data()}, {db.data()}));
  std::vector<float> twice_dw = dw, twice_db = db;
  ASSERT_OK(layer->BackwardParameters(x.data(), dy.data(), {twice_dw.data(), true},
                                      {twice_db.data(), true}));
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_EQ(twice_dw[i], 2 * dw[i]);
  for (size_t i = 0; i < db.size(); ++i) EXPECT_EQ(twice_db[i], 2 * db[i]);
  std::vector<float> only_db(4);
  ASSERT_OK(layer->BackwardParameters(x.data(), dy.data(), {}, {only_db.data()}));
  EXPECT_EQ(only_db, db);
}

TEST(LayerNormLayerTest, MatchesReference) {
  constexpr int64_t kRows = 64, kWidth = 48;
  auto layer = LayerNormLayer::Create(kRows, kWidth);
  ASSERT_OK(layer.status());
  const auto x = RandomValues("x", kRows * kWidth, 3), w = RandomValues("w", kWidth),
             b = RandomValues("b", kWidth), dy = RandomValues("dy", kRows * kWidth);
  std::vector<float> y(x.size()), mean(kRows), variance(kRows), dx(x.size()), dw(kWidth),
      db(kWidth);
  ASSERT_OK(layer->Forward(x.data(), w.data(), b.data(), y.data(), mean.data(), variance.data()));
  ASSERT_OK(layer->Backward(x.data(), w.data(), b.data(), mean.data(), variance.data(), dy.data(),
                            dx.data(), {dw.data()}, {db.data()}));
  const reference::LayerNorm expected{kRows, kWidth};
  ExpectNear(y, expected.Forward(InDouble(x), InDouble(w), InDouble(b)), "y");
  Values ref_dx, ref_dw, ref_db;
  expected.Backward(InDouble(x), InDouble(w), InDouble(dy), ref_dx, ref_dw, ref_db);
  ExpectNear(dx, ref_dx, "dx");
  ExpectNear(dw, ref_dw, "dw");
  ExpectNear(db, ref_db, "db");

  std::vector<float> twice_dw = dw, twice_db = db;
  ASSERT_OK(layer->Backward(x.data(), w.data(), b.data(), mean.data(), variance.data(), dy.data(),
                            dx.data(), {twice_dw.data(), true}, {twice_db.data(), true}));
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_EQ(twice_dw[i], 2 * dw[i]);
  for (size_t i = 0; i < db.size(); ++i) EXPECT_EQ(twice_db[i], 2 * db[i]);
}

// Epsilon is what is left of a row without variance: (x - mean) / sqrt(1e-5) x weight + bias =
// bias.
TEST(LayerNormLayerTest, ConstantRowGivesBias) {
  auto layer = LayerNormLayer::Create(1, 16);
  ASSERT_OK(layer.status());
  const std::vector<float> x(16, 2), w(16, 5), b = RandomValues("b", 16);
  std::vector<float> y(16);
  float mean = 0, variance = -1;
  ASSERT_OK(layer->Forward(x.data(), w.data(), b.data(), y.data(), &mean, &variance));
  EXPECT_EQ(y, b);
  EXPECT_EQ(mean, 2);
  EXPECT_EQ(variance, 0);
}

class AttentionLayerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSequences = 3, kContext = 20, kHeads = 4, kHeadWidth = 8;
  static constexpr int64_t kWidth = kHeads * kHeadWidth, kRows = kSequences * kContext;

  void SetUp() override {
    auto layer = AttentionLayer::Create({kSequences, kContext, kHeads, kHeadWidth});
    ASSERT_OK(layer.status());
    layer_.emplace(*std::move(layer));
  }
  AttentionLayer::Activations Activations(std::vector<float>& memory) {
    memory.resize(3 * kRows * kWidth + kRows * kHeads * kContext);
    float* const base = memory.data();
    return {base, base + kRows * kWidth, base + 2 * kRows * kWidth, base + 3 * kRows * kWidth};
  }
  std::vector<float> Forward(const std::vector<float>& qkv) {
    std::vector<float> output(kRows * kWidth);
    EXPECT_TRUE(layer_->Forward(qkv.data(), Activations(kept_), heads_.data(), output.data()).ok());
    return output;
  }

  std::optional<AttentionLayer> layer_;
  std::vector<float> kept_, scratch_, heads_ = std::vector<float>(kRows * kWidth);
};

TEST_F(AttentionLayerTest, MatchesReference) {
  const auto qkv = RandomValues("qkv", kRows * 3 * kWidth, 2),
             dy = RandomValues("dy", kRows * kWidth);
  const reference::Attention expected{kSequences, kContext, kHeads, kHeadWidth};
  ExpectNear(Forward(qkv), expected.Forward(InDouble(qkv)), "y");
  std::vector<float> gradient(qkv.size());
  ASSERT_OK(layer_->Backward(dy.data(), Activations(kept_), Activations(scratch_), heads_.data(),
                             gradient.data()));
  ExpectNear(gradient, expected.Backward(InDouble(qkv), InDouble(dy)), "qkv");
}

TEST_F(AttentionLayerTest, NoTokenSeesALaterOne) {
  auto qkv = RandomValues("qkv", kRows * 3 * kWidth);
  const std::vector<float> before = Forward(qkv);
  // Everything of the last token of sequence 0 changes: only that token's output may.
  for (int64_t i = (kContext - 1) * 3 * kWidth; i < kContext * 3 * kWidth; ++i) qkv[i] += 1;
  const std::vector<float> after = Forward(qkv);
  for (int64_t row = 0; row < kRows; ++row) {
    const bool same = std::equal(before.begin() + row * kWidth, before.begin() + (row + 1) * kWidth,
                                 after.begin() + row * kWidth);
    EXPECT_EQ(same, row != kContext - 1) << "row " << row;
  }
}

// Scores of +-1e4 would overflow exp without the subtraction of the row's largest.
TEST_F(AttentionLayerTest, LargeScoresStayFinite) {
  const auto qkv = RandomValues("qkv", kRows * 3 * kWidth, 100);
  for (const float value : Forward(qkv)) ASSERT_TRUE(std::isfinite(value));
}

TEST(GeluTest, MatchesReference) {
  const auto x = RandomValues("x", 64 * 32, 5), dy = RandomValues("dy", 64 * 32);
  auto gelu = MakeGelu(64, 32);
  ASSERT_OK(gelu.status());
  std::vector<float> y(x.size()), dx = dy;
  ASSERT_OK(gelu->forward->Run({{DNNL_ARG_SRC, x.data()}, {DNNL_ARG_DST, y.data()}}));
  ASSERT_OK(gelu->backward->Run(
      {{DNNL_ARG_SRC, x.data()}, {DNNL_ARG_DIFF_DST, dx.data()}, {DNNL_ARG_DIFF_SRC, dx.data()}}));
  ExpectNear(y, reference::Gelu(InDouble(x)), "y");
  ExpectNear(dx, reference::GeluBackward(InDouble(x), InDouble(dy)), "dx");
}

TEST(CrossEntropyLayerTest, MatchesReferenceAndSkipsMaskedTargets) {
  constexpr int64_t kRows = 12, kVocab = 300;
  auto layer = CrossEntropyLayer::Create(kRows, kVocab);
  ASSERT_OK(layer.status());
  auto logits = RandomValues("logits", kRows * kVocab, 20);
  const std::vector<int32_t> targets = {0, 299, 7, -1, 7, 8, 9, -1, 100, 200, 256, 1};
  Values gradient;
  const double expected =
      reference::CrossEntropy(InDouble(logits), targets, kVocab, 0.25, &gradient);
  const auto loss = layer->Forward(logits.data(), targets);
  ASSERT_OK(loss.status());
  EXPECT_NEAR(*loss, expected, 1e-5 * expected);
  ASSERT_OK(layer->Backward(logits.data(), targets, 0.25f));
  ExpectNear(logits, gradient, "logits");
}

// With equal logits each of 256 tokens costs ln 256; with one 200 nats below the rest its loss is
// 200 more, though its probability is below what a float32 can hold.
TEST(CrossEntropyLayerTest, LossOfAnImprobableTokenIsFinite) {
  auto layer = CrossEntropyLayer::Create(1, 256);
  ASSERT_OK(layer.status());
  std::vector<float> logits(256, 3);
  EXPECT_NEAR(layer->Forward(logits.data(), {17}).value(), std::log(256.0), 5e-6);
  logits.assign(256, 3);
  logits[17] = -197;
  EXPECT_NEAR(layer->Forward(logits.data(), {17}).value(), 200 + std::log(255.0), 1e-4);
}

TEST(EmbeddingTest, AddsTokenAndPositionAndScattersBack) {
  // Two sequences of two tokens, width 1.
  const std::vector<int32_t> tokens = {2, 0, 2, 2};
  const std::vector<float> token_table = {1, 2, 4}, position_table = {10, 20};
  std::vector<float> output(4);
  EmbeddingForward(tokens, 2, 1, token_table.data(), position_table.data(), output.data());
  EXPECT_EQ(output, (std::vector<float>{14, 21, 14, 24}));

  const std::vector<float> gradient = {1, 2, 4, 8};
  std::vector<float> token_gradient(3, 100), position_gradient(2, 100);
  EmbeddingBackward(tokens, 2, 3, 1, gradient.data(), {token_gradient.data(), true},
                    {position_gradient.data(), false});
  EXPECT_EQ(token_gradient, (std::vector<float>{102, 100, 113}));
  EXPECT_EQ(position_gradient, (std::vector<float>{5, 10}));
  EmbeddingBackward(tokens, 2, 3, 1, gradient.data(), {token_gradient.data(), false}, {});
  EXPECT_EQ(token_gradient, (std::vector<float>{2, 0, 13}));
}

TEST(OneDnnKernelTest, RefusesBadShapesAndArgumentsWithoutThrowing) {
  EXPECT_EQ(MakeSoftmax(0, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeLinear(1, -1, 1, WeightOrder::kInOut, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto softmax = MakeSoftmax(1, 4);
  ASSERT_OK(softmax.status());
  float values[4] = {};
  EXPECT_EQ((*softmax)->Run({{DNNL_ARG_SRC, values}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*softmax)->Run({{DNNL_ARG_SRC, values}, {DNNL_ARG_MEAN, values}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*softmax)->Run({{DNNL_ARG_SRC, values}, {DNNL_ARG_DST, nullptr}}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
