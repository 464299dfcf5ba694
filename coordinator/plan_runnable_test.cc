// What can be planned and not run yet is refused by the field that asks for it.
#include "coordinator/plan_runnable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "coordinator/planner.h"

namespace tessera {
namespace {

// A gpt of two blocks, with more of the job file.
absl::Status Check(const std::string& more) {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j","model":{"layers":2})", more, "}"), "job");
  if (!spec.ok()) return spec.status();
  auto job = ResolveJobSpec(*std::move(spec));
  if (!job.ok()) return job.status();
  const auto model = ModelOf(*job);
  EXPECT_TRUE(model.ok()) << model.status();
  const auto plan = MakePlan(*model, *job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? CheckPlanRunnable(*job, *plan) : plan.status();
}

std::string Override(const std::string& fqn, const std::string& config) {
  return absl::StrCat(R"(,"wrap":{"overrides":[{"fqn":")", fqn, R"(","config":)", config, "}]}");
}

TEST(PlanRunnableTest, UnitsInDTypesOfTheirOwnRun) {
  EXPECT_TRUE(Check("").ok());
  EXPECT_TRUE(Check(R"(,"mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32"})").ok());
  EXPECT_TRUE(Check(Override("h.1", R"({"param_dtype":"fp16"})")).ok());
  EXPECT_TRUE(Check(R"(,"wrap":{"policy":"size","min_params":100000})").ok());
  EXPECT_TRUE(Check(R"(,"wrap":{"policy":"always"})").ok());
  // Says what is so anyway: in float32 kept gradients are as the others.
  EXPECT_TRUE(Check(R"(,"mixed_precision":{"keep_low_precision_grads":true})").ok());
  EXPECT_TRUE(Check(R"(,"mixed_precision":{"unsynced_grad_dtype":"reduce"})").ok());
}

TEST(PlanRunnableTest, NamesWhatComesLater) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"(,"mixed_precision":{"param_dtype":"fp64"})", "mixed_precision.param_dtype",
       "float64 is not available yet"},
      {R"(,"mixed_precision":{"reduce_dtype":"fp64"})", "mixed_precision.reduce_dtype",
       "use float32"},
      {R"(,"mixed_precision":{"param_dtype":"bf16","keep_grads_in_reduce_dtype":true})",
       "mixed_precision.keep_grads_in_reduce_dtype", "give false"},
      {R"(,"mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32","unsynced_grad_dtype":"reduce"})",
       "mixed_precision.unsynced_grad_dtype", "give compute"},
      {R"(,"mixed_precision":{"loss_scale":"dynamic"})", "mixed_precision.loss_scale", "give none"},
      {R"(,"mixed_precision":{"loss_scale":"1024"})", "mixed_precision.loss_scale", "give none"},
      {R"(,"mixed_precision":{"divide_factor":3})", "mixed_precision.divide_factor", "is 3"},
      {R"(,"mixed_precision":{"cast_forward_inputs":true})", "mixed_precision.cast_forward_inputs",
       "give false"},
      {R"(,"wrap":{"ignore":["wpe"]})", "wrap.ignore", "\"wpe.weight\""},
      {R"(,"wrap":{"root_unit":"by_policy"})", "wrap.root_unit", "give always"},
      {Override("h.0", R"({"param_dtype":"fp64"})"), "h.0.param_dtype", "float64"},
      {Override("h.0", R"({"cast_forward_inputs":true})"), "h.0.cast_forward_inputs", "drop it"},
  };
  for (const auto& [more, field, because] : cases) {
    const absl::Status status = Check(more);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << more;
    EXPECT_EQ(Field(status), field) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(because));
  }
}

TEST(PlanRunnableTest, BuffersAreNotCastYet) {
  const std::string model =
      R"(,"model":{"spec":{"root":{"parameters":[{"name":"w","shape":[8],"dtype":"float32"}],
      "buffers":[{"name":"mean","shape":[8],"dtype":"float32"},{"name":"n","shape":[],"dtype":"int64"}]}}})";
  const auto check = [&](const std::string& precision) {
    auto job = ResolveJobSpec(*ParseJobSpec(
        absl::StrCat(R"({"name":"j","mixed_precision":)", precision, model, "}"), "job"));
    return CheckPlanRunnable(*job, *MakePlan(*ModelOf(*job), *job));
  };
  EXPECT_TRUE(check("{}").ok());
  const absl::Status status = check(R"({"buffer_dtype":"bf16"})");
  EXPECT_EQ(Field(status), "mixed_precision.buffer_dtype");
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("\"mean\""));
}

}  // namespace
}  // namespace tessera
