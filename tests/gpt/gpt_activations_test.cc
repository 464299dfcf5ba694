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
          .attention = job.model().attention()};
}

TEST(GptActivationsTest, TheForecastIsWhatTheModelAllocates) {
  for (const char* more : {
           "",
           R"(,"global_batch":6,"micro_batches":3)",
           R"(,"model":{"attention":false})",
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

// Two blocks and the root pass through stand-ins as the workload passes them.
TEST(GptActivationsTest, StandInsForSixteenBitsAreForecastToo) {
  constexpr char kSmall[] = R"(,"model":{"layers":2,"width":32,"heads":2,"context":8})";
  const v1::JobSpec job = Job(kSmall);
  const GptShape shape = ShapeOf(job, 2);
  std::vector<char> memory(4 * shape.vocab * shape.width);
  Float32Parameters root_parameters, block_parameters;
  Float32Gradients root_gradients, block_gradients;
  const auto pass = [&](const auto& numels, Float32Parameters& parameters,
                        Float32Gradients& gradients) {
    for (size_t i = 0; i < numels.size(); ++i) {
      TensorView view;
      view.data = memory.data();
      view.dtype = v1::BFLOAT16;
      view.numel = numels[i];
      parameters.Widen(static_cast<int>(i), view);
      GradientSlot slot;
      slot.view = view;
      gradients.Open(static_cast<int>(i), slot);
    }
    gradients.Store();
  };
  pass(RootNumel(shape), root_parameters, root_gradients);
  for (int layer = 0; layer < 2; ++layer) {
    pass(BlockNumel(shape), block_parameters, block_gradients);
  }
  const int64_t stand_ins = root_parameters.bytes() + block_parameters.bytes() +
                            root_gradients.bytes() + block_gradients.bytes();
  const v1::JobSpec half =
      Job(absl::StrCat(kSmall, R"(,"mixed_precision":{"param_dtype":"bf16"})"));
  EXPECT_EQ(Forecast(half, 2).activation_bytes() - Forecast(job, 2).activation_bytes(), stand_ins);
}

}  // namespace
}  // namespace tessera
