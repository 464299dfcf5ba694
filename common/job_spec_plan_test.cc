// The parts of a job file that say how a model is cut and in which dtypes it lives: defaults, and
// one line for each mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOwnModel[] =
    R"("model":{"spec":{"root":{"parameters":[{"name":"w","shape":[4],"dtype":"bf16"}]}}})";

// A job with a model of its own; `more` follows.
absl::StatusOr<v1::JobSpec> Resolve(const std::string& more) {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"a",)", kOwnModel, more, "}"), "job.json");
  if (!spec.ok()) return spec.status();
  return ResolveJobSpec(*std::move(spec));
}

v1::JobSpec Resolved(const std::string& more) {
  auto spec = Resolve(more);
  EXPECT_TRUE(spec.ok()) << more << "\n" << spec.status();
  if (!spec.ok()) return {};
  const auto again = ResolveJobSpec(*spec);
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->DebugString(), spec->DebugString());  // idempotent
  return *std::move(spec);
}

TEST(WrapDefaultsTest, SizeWhereTheModelHasNoPolicyOfItsOwn) {
  const v1::WrapSpec wrap = Resolved("").wrap();
  EXPECT_EQ(wrap.policy(), "size");
  EXPECT_EQ(wrap.min_params(), 100'000'000);
  EXPECT_THAT(wrap.exclude_classes(), ElementsAre("ModuleList", "ModuleDict"));
  EXPECT_THAT(wrap.force_leaf_classes(), ElementsAre("MultiheadAttention"));
  EXPECT_TRUE(wrap.has_skip_root_check());
  EXPECT_EQ(wrap.root_unit(), "always");
  EXPECT_EQ(wrap.ties(), "lift");
  EXPECT_EQ(wrap.mixed_dtypes(), "refuse");
}

TEST(WrapDefaultsTest, WhatIsGivenSaysThePolicy) {
  EXPECT_EQ(Resolved(R"(,"wrap":{"min_params":5})").wrap().policy(), "size");
  EXPECT_EQ(Resolved(R"(,"wrap":{"wrap_classes":["A"]})").wrap().policy(), "class");
  EXPECT_EQ(Resolved(R"(,"wrap":{"ignore":["w"]})").wrap().policy(), "size");
}

TEST(WrapDefaultsTest, ListsReplaceDefaultsAndAnEmptyNameIsTheEmptySet) {
  const v1::WrapSpec wrap =
      Resolved(R"(,"wrap":{"exclude_classes":["A"],"force_leaf_classes":[""],"min_params":0})")
          .wrap();
  EXPECT_THAT(wrap.exclude_classes(), ElementsAre("A"));
  EXPECT_THAT(wrap.force_leaf_classes(), ElementsAre(""));
  EXPECT_EQ(wrap.min_params(), 0);
}

TEST(WrapDefaultsTest, PoliciesOfAUnionHaveTheirOwn) {
  const v1::WrapSpec wrap =
      Resolved(R"(,"wrap":{"any_of":[{"policy":"size"},{"wrap_classes":["A"]},{"policy":"none"}]})")
          .wrap();
  EXPECT_FALSE(wrap.has_policy());
  EXPECT_EQ(wrap.any_of(0).min_params(), 100'000'000);
  EXPECT_EQ(wrap.any_of(1).policy(), "class");
  EXPECT_FALSE(wrap.any_of(2).has_min_params());
}

TEST(MixedPrecisionDefaultsTest, NamesAreCanonicalAndOne) {
  const v1::MixedPrecisionSpec precision =
      Resolved(
          R"(,"mixed_precision":{"param_dtype":"half","buffer_dtype":"f32","keep_low_precision_grads":true,"loss_scale":"1024"})")
          .mixed_precision();
  EXPECT_EQ(precision.param_dtype(), "float16");
  EXPECT_EQ(precision.buffer_dtype(), "float32");
  EXPECT_TRUE(precision.keep_grads_in_reduce_dtype());
  EXPECT_FALSE(precision.has_keep_low_precision_grads());
  EXPECT_EQ(precision.loss_scale(), "1024");
  EXPECT_EQ(precision.ignored_classes_size(), 5);
}

TEST(MixedPrecisionDefaultsTest, OverridesAreCanonical) {
  const v1::JobSpec job = Resolved(
      R"(,"wrap":{"overrides":[{"fqn":"","config":{"param_dtype":"bf16","reduce_dtype":""}}]})");
  EXPECT_EQ(job.wrap().overrides(0).config().param_dtype(), "bfloat16");
  EXPECT_TRUE(job.wrap().overrides(0).config().has_reduce_dtype());
}

TEST(WrapErrorsTest, NameTheFieldAndSayWhatToDo) {
  std::string many = R"({"ignore":["a)";
  for (int i = 0; i < 1001; ++i) absl::StrAppend(&many, "\",\"a", i, "*");
  many += "\"]}";
  // What wrap is, the field to blame, and what the message says.
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"({"policy":"best"})", "wrap.policy",
       "\"best\" is unknown; use size or class or always or none or annotated"},
      {R"({"policy":"size","wrap_classes":["A"]})", "wrap.wrap_classes",
       "is for wrap.policy class, and the policy is size; change the policy or drop it"},
      {R"({"policy":"class"})", "wrap.wrap_classes", "is empty"},
      {R"({"wrap_classes":["A"],"min_params":5})", "wrap.min_params",
       "is for wrap.policy size, and the policy is class"},
      {R"({"policy":"always","exclude_classes":["A"]})", "wrap.exclude_classes",
       "policy is always"},
      {R"({"policy":"none","force_leaf_classes":["A"]})", "wrap.force_leaf_classes",
       "policy is none"},
      {R"({"policy":"annotated","skip_root_check":true})", "wrap.skip_root_check",
       "policy is annotated"},
      {R"({"min_params":-1})", "wrap.min_params", "is -1; give 0 to"},
      {R"({"min_params":"35184372088833"})", "wrap.min_params", "is 35184372088833"},
      {R"({"exclude_classes":["A",""]})", "wrap.exclude_classes", "beside other names; drop it"},
      {R"({"force_leaf_classes":["","A"]})", "wrap.force_leaf_classes", "[\"\"] is the empty set"},
      {R"({"skip_root_check":true})", "wrap.skip_root_check", "give by_policy or drop it"},
      {R"({"root_unit":"never"})", "wrap.root_unit", "use always or by_policy"},
      {R"({"ties":"cut"})", "wrap.ties", "use lift or reject"},
      {R"({"mixed_dtypes":"cast"})", "wrap.mixed_dtypes", "use refuse or split"},
      {R"({"wrap_patterns":["a..b"]})", "wrap.wrap_patterns", "has an empty segment"},
      {R"({"ignore":["a."]})", "wrap.ignore", "has an empty segment"},
      {many, "wrap.ignore", "more than 1000 patterns"},
      {R"({"policy":"size","any_of":[{"policy":"none"}]})", "wrap.policy", "into wrap.any_of"},
      {R"({"min_params":5,"any_of":[{"policy":"none"}]})", "wrap.any_of", "drop wrap.any_of"},
      {R"({"any_of":[{}]})", "wrap.any_of[0].policy", "is absent"},
      {R"({"any_of":[{"policy":"none"},{"policy":"no"}]})", "wrap.any_of[1].policy", "unknown"},
      {R"({"any_of":[{"policy":"class"}]})", "wrap.any_of[0].wrap_classes", "is empty"},
      {R"({"any_of":[{"policy":"none","min_params":1}]})", "wrap.any_of[0].min_params",
       "is for wrap.any_of[0].policy size, and the policy is none"},
      {R"({"any_of":[{"policy":"none","root_unit":"always"}]})", "wrap.any_of[0]",
       "give the rest in wrap"},
      {R"({"any_of":[{"policy":"none","any_of":[{"policy":"none"}]}]})", "wrap.any_of[0]",
       "give the rest in wrap"},
      {R"({"any_of":[{"policy":"size","skip_root_check":true}]})", "wrap.any_of[0].skip_root_check",
       "by_policy"},
      {R"({"overrides":[{"config":{"param_dtype":"bf16"}}]})", "wrap.overrides[0].fqn",
       "is absent"},
      {R"({"overrides":[{"fqn":"a"}]})", "wrap.overrides[0].config", "sets nothing"},
      {R"({"overrides":[{"fqn":"a","config":{}}]})", "wrap.overrides[0].config", "sets nothing"},
      {R"({"overrides":[{"fqn":".","config":{"reshard_group":1}}]})", "wrap.overrides[0].fqn",
       "empty segment"},
      {R"({"overrides":[{"fqn":"a","config":{"reshard_group":1}},{"fqn":"a","config":{"param_dtype":"int8"}}]})",
       "wrap.overrides[1].config.param_dtype", "cannot be trained in"},
      {R"({"overrides":[{"fqn":"a","config":{"reduce_dtype":"f8"}}]})",
       "wrap.overrides[0].config.reduce_dtype", "unknown dtype"},
      {R"({"overrides":[{"fqn":"a","config":{"buffer_dtype":"bool"}}]})",
       "wrap.overrides[0].config.buffer_dtype", "cannot be trained in"},
      {R"({"overrides":[{"fqn":"a","config":{"unsynced_grad_dtype":"both"}}]})",
       "wrap.overrides[0].config.unsynced_grad_dtype", "use compute or reduce"},
      {R"({"overrides":[{"fqn":"a","config":{"strategy":"half_shard"}}]})",
       "wrap.overrides[0].config.strategy", "use full_shard"},
      {R"({"overrides":[{"fqn":"a","config":{"param_align_bytes":-1}}]})",
       "wrap.overrides[0].config.param_align_bytes", "is -1"},
      {R"({"overrides":[{"fqn":"a","config":{"shard_align_bytes":1048577}}]})",
       "wrap.overrides[0].config.shard_align_bytes", "give 0 to 1048576"},
      {R"({"overrides":[{"fqn":"a","config":{"reshard_group":-2}}]})",
       "wrap.overrides[0].config.reshard_group", "is -2"},
  };
  for (const auto& [wrap, field, because] : cases) {
    const absl::Status status = Resolve(absl::StrCat(R"(,"wrap":)", wrap)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrap;
    EXPECT_EQ(Field(status), field) << wrap << "\n" << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(because)) << wrap;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << wrap;
  }
}

TEST(WrapErrorsTest, TheBuiltinModelHasAPolicyOfItsOwn) {
  auto spec = ParseJobSpec(R"({"name":"a","wrap":{"min_params":5}})", "job.json");
  const absl::Status status = ResolveJobSpec(*spec).status();
  EXPECT_EQ(Field(status), "wrap.min_params");
  EXPECT_THAT(std::string(status.message()), HasSubstr("the policy is class; change the policy"));
  spec->mutable_wrap()->set_policy("size");
  EXPECT_TRUE(ResolveJobSpec(*spec).ok());
}

TEST(MixedPrecisionErrorsTest, NameTheFieldAndSayWhatToDo) {
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"({"param_dtype":"int8"})", "mixed_precision.param_dtype", "cannot be trained in"},
      {R"({"buffer_dtype":"int8"})", "mixed_precision.buffer_dtype", "cannot be trained in"},
      {R"({"buffer_dtype":"f33"})", "mixed_precision.buffer_dtype", "unknown dtype"},
      {R"({"keep_grads_in_reduce_dtype":true,"keep_low_precision_grads":false})",
       "mixed_precision.keep_low_precision_grads", "give one of them"},
      {R"({"unsynced_grad_dtype":"param"})", "mixed_precision.unsynced_grad_dtype",
       "use compute or reduce"},
      {R"({"unsynced_grad_dtype":""})", "mixed_precision.unsynced_grad_dtype",
       "use compute or reduce"},
      {R"({"loss_scale":"static"})", "mixed_precision.loss_scale", "give none, dynamic or a"},
      {R"({"loss_scale":"0"})", "mixed_precision.loss_scale", "above 0"},
      {R"({"loss_scale":"inf"})", "mixed_precision.loss_scale", "finite"},
      {R"({"divide_factor":-1})", "mixed_precision.divide_factor", "is -1"},
      {R"({"divide_factor":"NaN"})", "mixed_precision.divide_factor", "finite"},
      {R"({"ignored_classes":["","A"]})", "mixed_precision.ignored_classes", "drop it"},
      {R"({"cast_forward_inputs":1})", "mixed_precision.cast_forward_inputs", "true or false"},
  };
  for (const auto& [precision, field, because] : cases) {
    const absl::Status status = Resolve(absl::StrCat(R"(,"mixed_precision":)", precision)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << precision;
    EXPECT_EQ(Field(status), field) << precision << "\n" << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(because)) << precision;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << precision;
  }
}

}  // namespace
}  // namespace tessera
