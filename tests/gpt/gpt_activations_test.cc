// The forecast of activations against what the workload gpt allocates.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "coordinator/job_planner.h"
#include "worker/workloads/gpt_float32.h"
#include "worker/workloads/gpt_model.h"

namespace tessera {
namespace {

v1::JobSpec Job(const std::string& more) {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j")", more, "}"), "job.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto resolved = ResolveJobSpec(*std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

v1::Forecast Forecast(const v1::JobSpec& job, int world_size) {
  const auto planned = PlanJob(job, world_size);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned->forecast;
}

GptShape ShapeOf(const v1::JobSpec& job, int world_size) {
  return {.layers = job.model().layers(),
          .width = job.model().width(),
          .heads = job.model().heads(),
          .context = job.model().context(),
          .vocab = job.model().vocab(),
          .sequences = job.global_batch() / world_size / job.micro_batches(),
          .attention = job.model().attention(),
          .recompute = job.activations().recompute() == "unit"};
}

TEST(GptActivationsTest, TheForecastIsWhatTheModelAllocates) {
  for (const char* more : {
           "",
           R"(,"global_batch":6,"micro_batches":3)",
           R"(,"model":{"attention":false})",
           R"(,"activations":{"recompute":"unit"})",
           R"(,"activations":{"recompute":"unit"},"model":{"attention":false,"layers":7})",
           // Nothing here is a multiple of 16 elements.
           R"(,"model":{"layers":3,"width":30,"heads":5,"context":7,"vocab":257},"global_batch":6)",
       }) {
    const v1::JobSpec job = Job(more);
    const auto model = GptModel::Create(ShapeOf(job, 2));
    ASSERT_TRUE(model.ok()) << model.status();
    const v1::Forecast forecast = Forecast(job, 2);
    EXPECT_EQ(forecast.activation_certainty(), v1::Forecast::EXACT) << more;
    EXPECT_EQ(forecast.activation_bytes(), (*model)->activation_bytes()) << more;
  }
}

// A step of two blocks and the root in bfloat16, as the workload makes it.
TEST(GptActivationsTest, StandInsForSixteenBitsAreForecastToo) {
  for (const bool attention : {true, false}) {
    const std::string small =
        absl::StrCat(R"(,"model":{"layers":2,"width":32,"heads":2,"context":8,"attention":)",
                     attention ? "true" : "false", "}");
    const v1::JobSpec job = Job(small);
    const GptShape shape = ShapeOf(job, 2);
    const auto model = GptModel::Create(shape);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<char> memory(2 * 4 * shape.width * shape.width * 4);
    Float32Parameters parameters;
    Float32Gradients gradients;
    RootTensors root;
    RootGradients root_gradients;
    for (int i = 0; i < kRootParameters; ++i) {
      TensorView view;
      view.data = memory.data();
      view.dtype = v1::BFLOAT16;
      view.numel = RootNumel(shape)[i];
      root[i] = parameters.Widen(i, view);
      GradientSlot slot;
      slot.view = view;
      root_gradients[i] = gradients.Open(i, slot);
    }
    BlockTensors block;
    BlockGradients block_gradients;
    for (int i = 0; i < kBlockParameters; ++i) {
      block[i] = {memory.data(), v1::BFLOAT16};
      if (attention || i > kAttnProjBias) block_gradients[i] = {memory.data(), false, v1::BFLOAT16};
    }
    const std::vector<int32_t> tokens(shape.sequences * shape.context, 1);
    absl::Status status = (*model)->EmbedForward(root, tokens);
    for (int64_t i = 0; i < 2; ++i) status.Update((*model)->BlockForward(i, block));
    status.Update((*model)->HeadForward(root, tokens).status());
    status.Update((*model)->HeadBackward(root, tokens, 1, root_gradients));
    for (int64_t i = 1; i >= 0; --i) {
      status.Update((*model)->BlockBackward(i, block, block_gradients));
    }
    ASSERT_TRUE(status.ok()) << status;
    const v1::JobSpec half =
        Job(absl::StrCat(small, R"(,"mixed_precision":{"param_dtype":"bf16"})"));
    EXPECT_EQ(Forecast(half, 2).activation_bytes() - Forecast(job, 2).activation_bytes(),
              parameters.bytes() + gradients.bytes() + (*model)->stand_in_bytes());
  }
}

}  // namespace
}  // namespace tessera
