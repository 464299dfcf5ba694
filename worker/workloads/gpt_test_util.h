// What the gpt tests share: random inputs, the double reference's tolerance, and a model in both
// precisions.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_TEST_UTIL_H_
#define TESSERA_WORKER_WORKLOADS_GPT_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/philox.h"
#include "gtest/gtest.h"
#include "worker/workloads/gpt_model.h"
#include "worker/workloads/gpt_reference.h"

namespace tessera {

// Even in [-scale, scale), different for each `name`, and exact in float32, so that both precisions
// start from the same numbers.
inline std::vector<float> RandomValues(const std::string& name, int64_t count, float scale = 1) {
  const RandomStream stream(1, StreamId(name));
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const double unit = stream.Block(i / 4)[i % 4] / 4294967296.0;
    values[i] = static_cast<float>(scale * (2 * unit - 1));
  }
  return values;
}

inline reference::Values InDouble(const std::vector<float>& values) {
  return reference::Values(values.begin(), values.end());
}

inline double Largest(const reference::Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// Every element within `relative` of the reference tensor's largest.
inline void ExpectNear(const float* actual, const reference::Values& expected,
                       const std::string& what, double relative = 1e-5) {
  const double largest = Largest(expected);
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, relative * largest) << what << ": off by " << worst << ", largest " << largest;
}

inline void ExpectNear(const std::vector<float>& actual, const reference::Values& expected,
                       const std::string& what, double relative = 1e-5) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ExpectNear(actual.data(), expected, what, relative);
}

// A model's parameters, or their gradients, in float32.
struct FloatModel {
  std::array<std::vector<float>, kRootParameters> root;
  std::vector<std::array<std::vector<float>, kBlockParameters>> blocks;

  explicit FloatModel(const GptShape& shape) : blocks(static_cast<size_t>(shape.layers)) {
    for (int i = 0; i < kRootParameters; ++i) root[i].resize(RootNumel(shape)[i]);
    for (auto& block : blocks) {
      for (int i = 0; i < kBlockParameters; ++i) block[i].resize(BlockNumel(shape)[i]);
    }
  }
  RootTensors Root() const {
    RootTensors tensors;
    for (int i = 0; i < kRootParameters; ++i) tensors[i] = root[i].data();
    return tensors;
  }
  BlockTensors Block(int64_t layer) const {
    BlockTensors tensors;
    for (int i = 0; i < kBlockParameters; ++i) tensors[i] = blocks[layer][i].data();
    return tensors;
  }
  RootGradients RootTargets(bool accumulate) {
    RootGradients targets;
    for (int i = 0; i < kRootParameters; ++i) targets[i] = {root[i].data(), accumulate};
    return targets;
  }
  BlockGradients BlockTargets(int64_t layer, bool accumulate) {
    BlockGradients targets;
    for (int i = 0; i < kBlockParameters; ++i) targets[i] = {blocks[layer][i].data(), accumulate};
    return targets;
  }
};

// Forward and, with `gradients`, backward of scale x the loss sum. Returns the loss sum.
inline absl::StatusOr<double> RunModel(GptModel& model, const FloatModel& parameters,
                                       const std::vector<int32_t>& tokens,
                                       const std::vector<int32_t>& targets, float scale,
                                       FloatModel* gradients, bool accumulate = false) {
  const int64_t layers = model.shape().layers;
  absl::Status status = model.EmbedForward(parameters.Root(), tokens);
  for (int64_t i = 0; i < layers; ++i) status.Update(model.BlockForward(i, parameters.Block(i)));
  if (!status.ok()) return status;
  const absl::StatusOr<double> loss = model.HeadForward(parameters.Root(), targets);
  if (!loss.ok() || gradients == nullptr) return loss;

  RootGradients root = gradients->RootTargets(accumulate);
  status.Update(model.HeadBackward(parameters.Root(), targets, scale, root));
  for (int64_t i = layers - 1; i >= 0; --i) {
    if (model.shape().recompute) status.Update(model.BlockRecompute(i, parameters.Block(i)));
    status.Update(
        model.BlockBackward(i, parameters.Block(i), gradients->BlockTargets(i, accumulate)));
  }
  root[kWte].accumulate = true;  // the head's contribution is there
  status.Update(model.EmbedBackward(tokens, root));
  if (!status.ok()) return status;
  return loss;
}

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_TEST_UTIL_H_
