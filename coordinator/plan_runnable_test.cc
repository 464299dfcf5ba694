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

// A job with this model.
absl::Status CheckModel(const std::string& model, const std::string& more) {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j")", model, more, "}"), "job");
  if (!spec.ok()) return spec.status();
  auto job = ResolveJobSpec(*std::move(spec));
  if (!job.ok()) return job.status();
  const auto spec_of_model = ModelOf(*job);
  EXPECT_TRUE(spec_of_model.ok()) << spec_of_model.status();
  const auto plan = MakePlan(*spec_of_model, *job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? CheckPlanRunnable(*job, *plan) : plan.status();
}

// A gpt of two blocks, with more of the job file.
absl::Status Check(const std::string& more) { return CheckModel(R"(,"model":{"layers":2})", more); }

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
      {R"(,"optimizer":{"groups":[{"pattern":"h.*.bias"}]})", "optimizer.groups[0].pattern",
       "matches no parameter of the plan"},
      {R"(,"mixed_precision":{"cast_forward_inputs":true})", "mixed_precision.cast_forward_inputs",
       "give false"},
      {R"(,"wrap":{"ignore":["wpe"]})", "wrap.ignore", "\"wpe.weight\""},
      {R"(,"wrap":{"root_unit":"by_policy"})", "wrap.root_unit", "give always"},
      {Override("h.0", R"({"cast_forward_inputs":true})"), "h.0.cast_forward_inputs", "drop it"},
  };
  for (const auto& [more, field, because] : cases) {
    const absl::Status status = Check(more);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << more;
    EXPECT_EQ(Field(status), field) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(because));
  }
}

// Of a program of one's own; gpt's are refused above.
TEST(PlanRunnableTest, ParametersInNoUnitRunWithAProgramThatTrainsThem) {
  const std::string model =
      R"(,"workload":"attached","model":{"spec":{"root":{"parameters":[{"name":"w","shape":[8],"dtype":"float32"}],
      "children":[{"name":"a","class_name":"A","parameters":[{"name":"w","shape":[8],"dtype":"float32"}]}]}}})";
  EXPECT_TRUE(
      CheckModel(model, R"(,"wrap":{"policy":"class","wrap_classes":["A"],"ignore":["w"]})").ok());
  EXPECT_TRUE(
      CheckModel(model,
                 R"(,"wrap":{"policy":"class","wrap_classes":["A"],"root_unit":"by_policy"})")
          .ok());
  const absl::Status none =
      CheckModel(model, R"(,"wrap":{"policy":"none","root_unit":"by_policy"})");
  EXPECT_EQ(Field(none), "wrap.root_unit") << none;
}

TEST(PlanRunnableTest, EveryPrecisionRunsOnCpusAndGpusNameWhatComesLater) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"(,"mixed_precision":{"param_dtype":"fp64"})", "mixed_precision.param_dtype",
       "float64 is not available on device cuda"},
      {R"(,"mixed_precision":{"reduce_dtype":"fp64"})", "mixed_precision.reduce_dtype",
       "use float32"},
      {R"(,"mixed_precision":{"param_dtype":"bf16","keep_grads_in_reduce_dtype":true})",
       "mixed_precision.keep_grads_in_reduce_dtype", "give false"},
      {R"(,"mixed_precision":{"param_dtype":"bf16","reduce_dtype":"fp32","unsynced_grad_dtype":"reduce"})",
       "mixed_precision.unsynced_grad_dtype", "give compute"},
      {Override("h.0", R"({"param_dtype":"fp64"})"), "h.0.param_dtype", "float64"},
  };
  for (const auto& [more, field, because] : cases) {
    EXPECT_TRUE(Check(more).ok()) << Check(more);
    const absl::Status status = Check(absl::StrCat(more, R"(,"device":"cuda")"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << more;
    EXPECT_EQ(Field(status), field) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(because));
  }
  for (const char* scale : {"dynamic", "1024"}) {
    EXPECT_TRUE(Check(absl::StrCat(R"(,"mixed_precision":{"loss_scale":")", scale, R"("})")).ok());
  }
  EXPECT_TRUE(Check(R"(,"mixed_precision":{"divide_factor":3})").ok());
}

TEST(PlanRunnableTest, ModelsOfEveryFloatingDTypeRunOnCpus) {
  for (const char* dtype : {"float64", "bfloat16", "float16"}) {
    const std::string model =
        absl::StrCat(R"(,"model":{"spec":{"root":{"parameters":[{"name":"w","shape":[8],"dtype":")",
                     dtype, R"("}]}}})");
    const auto check = [&](const std::string& device) {
      auto job = ResolveJobSpec(*ParseJobSpec(
          absl::StrCat(R"({"name":"j","device":")", device, R"(")", model, "}"), "job"));
      return CheckPlanRunnable(*job, *MakePlan(*ModelOf(*job), *job));
    };
    EXPECT_TRUE(check("cpu").ok()) << check("cpu");
    EXPECT_EQ(Field(check("cuda")), "w");
    EXPECT_THAT(std::string(check("cuda").message()),
                testing::HasSubstr(absl::StrCat("is ", dtype)));
  }
}

// What a program casts itself, by Unit.buffers of the plan.
TEST(PlanRunnableTest, BuffersMayHaveADTypeOfTheirOwn) {
  auto job = ResolveJobSpec(*ParseJobSpec(
      R"({"name":"j","mixed_precision":{"buffer_dtype":"bf16"},"model":{"spec":{"root":{
      "parameters":[{"name":"w","shape":[8],"dtype":"float32"}],
      "buffers":[{"name":"mean","shape":[8],"dtype":"float32"},
      {"name":"n","shape":[],"dtype":"int64"}]}}}})",
      "job"));
  const auto plan = MakePlan(*ModelOf(*job), *job);
  EXPECT_TRUE(CheckPlanRunnable(*job, *plan).ok());
  EXPECT_EQ(plan->units(0).buffers(0).buffer_dtype(), v1::BFLOAT16);
  EXPECT_EQ(plan->units(0).buffers(1).buffer_dtype(), v1::INT64);
}

}  // namespace
}  // namespace tessera
