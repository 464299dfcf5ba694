// A block whose parameters and gradients are in a 16-bit dtype against the same block in float32.
#include "worker/workloads/block_float32.h"

#include <cstring>

#include "gtest/gtest.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/workloads/gpt_model.h"
#include "worker/workloads/gpt_test_util.h"

namespace tessera {
namespace {

constexpr GptShape kShape = {
    .layers = 1, .width = 32, .heads = 4, .context = 8, .vocab = 64, .sequences = 2};
using Bits = std::vector<uint16_t>;

Bits Narrowed(const std::vector<float>& values, DType dtype) {
  Bits bits(values.size());
  CastFloat32(values.data(), static_cast<int64_t>(values.size()), dtype, bits.data());
  return bits;
}

std::vector<float> Widened(const Bits& bits, DType dtype) {
  std::vector<float> values(bits.size());
  WidenToFloat32(bits.data(), static_cast<int64_t>(bits.size()), dtype, values.data());
  return values;
}

// Runs block 0 of one model on given parameters, forward and backward.
class BlockRun {
 public:
  BlockRun() : model_(*GptModel::Create(kShape)), root_(kShape) {
    for (int i = 0; i < kRootParameters; ++i) {
      root_.root[i] = RandomValues(kRootParameterNames[i], RootNumel(kShape)[i], 0.3f);
    }
    for (int i = 0; i < kShape.sequences * kShape.context; ++i) tokens_.push_back(i % 7);
  }

  double Loss(const BlockTensors& block, const BlockGradients& gradients) {
    FloatModel root_gradients(kShape);
    RootGradients targets = root_gradients.RootTargets(false);
    EXPECT_TRUE(model_->EmbedForward(root_.Root(), tokens_).ok());
    EXPECT_TRUE(model_->BlockForward(0, block).ok());
    const absl::StatusOr<double> loss = model_->HeadForward(root_.Root(), tokens_);
    EXPECT_TRUE(model_->HeadBackward(root_.Root(), tokens_, 0.1f, targets).ok());
    EXPECT_TRUE(model_->BlockBackward(0, block, gradients).ok());
    return loss.value_or(0);
  }

 private:
  std::unique_ptr<GptModel> model_;
  FloatModel root_;
  std::vector<int32_t> tokens_;
};

class BlockFloat32Test : public testing::TestWithParam<DType> {
 protected:
  BlockFloat32Test() : floats_(kShape), expected_(kShape) {
    for (int i = 0; i < kBlockParameters; ++i) {
      bits_[i] =
          Narrowed(RandomValues(kBlockParameterNames[i], BlockNumel(kShape)[i], 0.3f), GetParam());
      floats_.blocks[0][i] = Widened(bits_[i], GetParam());
      gradient_bits_[i].resize(bits_[i].size());
      tensors_[i] = {bits_[i].data(), GetParam()};
    }
    expected_loss_ = run_.Loss(floats_.Block(0), expected_.BlockTargets(0, false));
  }
  BlockGradients Targets(bool accumulate) {
    BlockGradients targets;
    for (int i = 0; i < kBlockParameters; ++i)
      targets[i] = {gradient_bits_[i].data(), accumulate, GetParam()};
    return targets;
  }

  BlockRun run_;
  FloatModel floats_, expected_;  // the parameters; the gradients in float32
  double expected_loss_ = 0;
  std::array<Bits, kBlockParameters> bits_, gradient_bits_;
  BlockTensors tensors_;
};

TEST_P(BlockFloat32Test, ComputesInFloat32AndRoundsEachGradientOnce) {
  EXPECT_EQ(run_.Loss(tensors_, Targets(false)), expected_loss_);
  for (int i = 0; i < kBlockParameters; ++i) {
    EXPECT_EQ(gradient_bits_[i], Narrowed(expected_.blocks[0][i], GetParam()))
        << kBlockParameterNames[i];
  }
}

TEST_P(BlockFloat32Test, AddsInFloat32AndRoundsOnce) {
  run_.Loss(tensors_, Targets(false));
  const std::array<Bits, kBlockParameters> first = gradient_bits_;
  run_.Loss(tensors_, Targets(true));
  for (int i = 0; i < kBlockParameters; ++i) {
    std::vector<float> sum = Widened(first[i], GetParam());
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += expected_.blocks[0][i][k];
    EXPECT_EQ(gradient_bits_[i], Narrowed(sum, GetParam())) << kBlockParameterNames[i];
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BlockFloat32Test, testing::Values(v1::BFLOAT16, v1::FLOAT16),
                         [](const auto& info) { return v1::DType_Name(info.param); });

TEST(GptBlockTest, AddsToFloat32) {
  BlockRun run;
  FloatModel parameters(kShape), once(kShape), twice(kShape);
  for (int i = 0; i < kBlockParameters; ++i) {
    parameters.blocks[0][i] = RandomValues(kBlockParameterNames[i], BlockNumel(kShape)[i], 0.3f);
  }
  run.Loss(parameters.Block(0), once.BlockTargets(0, false));
  run.Loss(parameters.Block(0), twice.BlockTargets(0, false));
  run.Loss(parameters.Block(0), twice.BlockTargets(0, true));
  for (int i = 0; i < kBlockParameters; ++i) {
    for (size_t k = 0; k < once.blocks[0][i].size(); ++k) {
      ASSERT_EQ(twice.blocks[0][i][k], 2 * once.blocks[0][i][k]) << kBlockParameterNames[i];
    }
  }
}

TEST(GptBlockTest, LeavesOutGradientsThatAreNotWanted) {
  BlockRun run;
  FloatModel parameters(kShape), gradients(kShape);
  for (int i = 0; i < kBlockParameters; ++i) {
    parameters.blocks[0][i] = RandomValues(kBlockParameterNames[i], BlockNumel(kShape)[i], 0.3f);
  }
  BlockGradients targets = gradients.BlockTargets(0, false);
  targets[kFcWeight] = {};
  run.Loss(parameters.Block(0), targets);
  EXPECT_EQ(gradients.blocks[0][kFcWeight],
            std::vector<float>(BlockNumel(kShape)[kFcWeight], 0.0f));
  EXPECT_NE(gradients.blocks[0][kFcBias], std::vector<float>(BlockNumel(kShape)[kFcBias], 0.0f));
}

}  // namespace
}  // namespace tessera
