#include "worker/workloads/bfloat16_linear.h"

#include <cmath>

#include "gtest/gtest.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/workloads/gpt_model.h"
#include "worker/workloads/gpt_test_util.h"

namespace tessera {
namespace {

TEST(BFloat16LinearTest, IsUsedOnlyWhereTheProcessorMultipliesBFloat16) {
  const absl::Status& checked = CheckBFloat16();
  if (ProcessorMultipliesBFloat16()) {
    EXPECT_NE(checked.code(), absl::StatusCode::kUnimplemented) << checked;
  } else {
    EXPECT_EQ(checked.code(), absl::StatusCode::kUnimplemented) << checked;
  }
  EXPECT_EQ(&checked, &CheckBFloat16());
}

// A whole block, its products in bfloat16, against the same block in float32: each product's
// relative error is some 2^-8, and errors of different signs add up.
TEST(BFloat16LinearTest, ABlockComputesNearlyAsInFloat32) {
  if (!CheckBFloat16().ok()) GTEST_SKIP() << CheckBFloat16().message();
  GptShape shape = {
      .layers = 1, .width = 64, .heads = 4, .context = 16, .vocab = 64, .sequences = 3};
  const auto full = GptModel::Create(shape);
  shape.bfloat16 = true;
  const auto low = GptModel::Create(shape);
  ASSERT_TRUE(full.ok() && low.ok()) << full.status() << low.status();
  FloatModel parameters(shape), expected(shape);
  std::array<std::vector<uint16_t>, kBlockParameters> bits;
  BlockTensors tensors;
  for (int i = 0; i < kBlockParameters; ++i) {
    std::vector<float>& values = parameters.blocks[0][i];
    const auto numel = static_cast<int64_t>(values.size());
    values = RandomValues(kBlockParameterNames[i], numel, 0.1f);
    bits[i].resize(values.size());
    CastFloat32(values.data(), numel, v1::BFLOAT16, bits[i].data());
    WidenToFloat32(bits[i].data(), numel, v1::BFLOAT16, values.data());
    tensors[i] = {bits[i].data(), v1::BFLOAT16};
  }
  for (int i = 0; i < kRootParameters; ++i) {
    parameters.root[i] = RandomValues(kRootParameterNames[i], RootNumel(shape)[i], 0.3f);
  }
  std::vector<int32_t> tokens;
  for (int i = 0; i < shape.sequences * shape.context; ++i) tokens.push_back(i * 5 % 64);
  const auto loss = RunModel(**full, parameters, tokens, tokens, 0.1f, &expected);
  ASSERT_TRUE(loss.ok()) << loss.status();

  FloatModel gradients(shape);
  RootGradients root = gradients.RootTargets(false);
  ASSERT_TRUE((*low)->EmbedForward(parameters.Root(), tokens).ok());
  ASSERT_TRUE((*low)->BlockForward(0, tensors).ok());
  const auto low_loss = (*low)->HeadForward(parameters.Root(), tokens);
  ASSERT_TRUE(low_loss.ok()) << low_loss.status();
  EXPECT_NEAR(*low_loss, *loss, 0.01 * *loss);
  ASSERT_TRUE((*low)->HeadBackward(parameters.Root(), tokens, 0.1f, root).ok());
  ASSERT_TRUE((*low)->BlockBackward(0, tensors, gradients.BlockTargets(0, false)).ok());
  for (int i = 0; i < kBlockParameters; ++i) {
    double error = 0, norm = 0;
    for (size_t k = 0; k < expected.blocks[0][i].size(); ++k) {
      const double want = expected.blocks[0][i][k];
      error += std::pow(gradients.blocks[0][i][k] - want, 2);
      norm += want * want;
    }
    EXPECT_LE(std::sqrt(error), 0.05 * std::sqrt(norm)) << kBlockParameterNames[i];
  }
}

}  // namespace
}  // namespace tessera
