#include "client/plan_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the flags make of `spec`. Arguments as `tessera` hands them on: "--flag", "" for "--flag=".
absl::StatusOr<v1::JobSpec> Apply(std::vector<std::string> arguments, v1::JobSpec spec = {}) {
  CLI::App app;
  auto flags = std::make_shared<PlanFlags>();
  AddPlanFlags(app, flags);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(std::move(arguments));
  const absl::Status status = ApplyPlanFlags(*flags, &spec);
  if (!status.ok()) return status;
  return spec;
}

struct Expected {
  const char* argument;
  const char* text;  // of the whole job, as protobuf prints it
};

class OneFieldTest : public testing::TestWithParam<Expected> {};

TEST_P(OneFieldTest, IsSetAndNoOther) {
  EXPECT_EQ(Apply({GetParam().argument}).value().ShortDebugString(), GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(
    AllFlags, OneFieldTest,
    testing::Values(
        Expected{"--wrap=size", R"(wrap { policy: "size" })"},
        Expected{"--min_params=1000", "wrap { min_params: 1000 }"},
        Expected{"--wrap_classes=A,B", R"(wrap { wrap_classes: "A" wrap_classes: "B" })"},
        Expected{"--exclude_classes=A,B", R"(wrap { exclude_classes: "A" exclude_classes: "B" })"},
        Expected{"--force_leaf_classes=A", R"(wrap { force_leaf_classes: "A" })"},
        Expected{"--ignore=h.0,wte.weight", R"(wrap { ignore: "h.0" ignore: "wte.weight" })"},
        Expected{"--root_unit=by_policy", R"(wrap { root_unit: "by_policy" })"},
        Expected{"--ties=reject", R"(wrap { ties: "reject" })"},
        Expected{"--mixed_dtypes=split", R"(wrap { mixed_dtypes: "split" })"},
        Expected{"--param_align_bytes=0", "wrap { param_align_bytes: 0 }"},
        Expected{"--shard_align_bytes=64", "wrap { shard_align_bytes: 64 }"},
        Expected{"--strategy=no_shard", R"(mesh { strategy: "no_shard" })"},
        Expected{"--replicas=2", "mesh { replicas: 2 }"},
        Expected{"--local_world_size=8", "mesh { local_world_size: 8 }"},
        Expected{"--reshard_group=4", "mesh { reshard_group: 4 }"},
        Expected{"--param_dtype=bf16", R"(mixed_precision { param_dtype: "bf16" })"},
        Expected{"--reduce_dtype=fp32", R"(mixed_precision { reduce_dtype: "fp32" })"},
        Expected{"--buffer_dtype=fp16", R"(mixed_precision { buffer_dtype: "fp16" })"},
        Expected{"--keep_grads_in_reduce_dtype",
                 "mixed_precision { keep_grads_in_reduce_dtype: true }"},
        Expected{"--keep_grads_in_reduce_dtype=false",
                 "mixed_precision { keep_grads_in_reduce_dtype: false }"},
        Expected{"--keep_low_precision_grads=true",
                 "mixed_precision { keep_low_precision_grads: true }"},
        Expected{"--unsynced_grad_dtype=reduce",
                 R"(mixed_precision { unsynced_grad_dtype: "reduce" })"},
        Expected{"--loss_scale=1024", R"(mixed_precision { loss_scale: "1024" })"},
        Expected{"--full_precision_eval", "mixed_precision { full_precision_eval: true }"},
        Expected{"--divide_factor=0.5", "mixed_precision { divide_factor: 0.5 }"},
        Expected{"--unshard=slots", R"(memory { unshard: "slots" })"},
        Expected{"--reshard_root", "memory { reshard_root: true }"},
        Expected{"--prefetch=0", "memory { prefetch: 0 }"},
        Expected{"--max_live_units=3", "memory { max_live_units: 3 }"},
        Expected{"--accumulate_unsynchronized", "memory { accumulate_unsynchronized: true }"},
        Expected{"--device_memory=80GiB", R"(memory { device_memory: "80GiB" })"},
        Expected{"--optimizer=sgd", R"(optimizer { name: "sgd" })"},
        Expected{"--batch=4", "activations { batch: 4 }"},
        Expected{"--sequence=2048", "activations { sequence: 2048 }"},
        Expected{"--recompute=unit", R"(activations { recompute: "unit" })"}));

TEST(PlanFlagsTest, AnEmptyListIsTheEmptySet) {
  EXPECT_THAT(Apply({"--exclude_classes", ""})->wrap().exclude_classes(), ElementsAre(""));
}

TEST(PlanFlagsTest, ListsHoldWhateverANameMayHold) {
  EXPECT_THAT(Apply({R"(--ignore=a"b\,</script>)"})->wrap().ignore(),
              ElementsAre(R"(a"b\)", "</script>"));
}

TEST(PlanFlagsTest, AListReplacesTheFiles) {
  v1::JobSpec spec;
  spec.mutable_wrap()->add_ignore("h.0");
  spec.mutable_wrap()->add_ignore("h.1");
  EXPECT_THAT(Apply({"--ignore=wte"}, spec)->wrap().ignore(), ElementsAre("wte"));
}

TEST(PlanFlagsTest, AnotherPolicyTakesAwayWhatWasForTheFiles) {
  v1::JobSpec spec;
  spec.mutable_wrap()->set_policy("class");
  spec.mutable_wrap()->add_wrap_classes("Block");
  EXPECT_EQ(Apply({"--wrap=size"}, spec)->ShortDebugString(), R"(wrap { policy: "size" })");
  EXPECT_THAT(Apply({"--wrap=class"}, spec)->wrap().wrap_classes(), ElementsAre("Block"));
  v1::JobSpec either;
  either.mutable_wrap()->add_any_of()->set_policy("always");
  EXPECT_EQ(Apply({"--wrap=none"}, either)->ShortDebugString(), R"(wrap { policy: "none" })");
  // What is said on the command line itself stays, whatever comes first.
  EXPECT_THAT(Apply({"--wrap_classes=A", "--wrap=size"})->wrap().wrap_classes(), ElementsAre("A"));
}

TEST(PlanFlagsTest, ErrorsNameFlagAndField) {
  for (const auto& [argument, flag, field] :
       {std::tuple("--min_params=many", "--min_params", "wrap.min_params"),
        std::tuple("--replicas=1.5", "--replicas", "mesh.replicas"),
        std::tuple("--batch=99999999999999999999", "--batch", "activations.batch"),
        std::tuple("--divide_factor=two", "--divide_factor", "mixed_precision.divide_factor"),
        std::tuple("--ignore=\xff", "--ignore", "wrap.ignore")}) {
    const absl::Status status = Apply({argument}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << argument;
    EXPECT_THAT(status.message(), HasSubstr(flag));
    EXPECT_THAT(status.message(), HasSubstr(field));
  }
  EXPECT_EQ(Field(Apply({"--keep_low_precision_grads=perhaps"}).status()),
            "--keep_low_precision_grads");
}

TEST(PlanFlagsTest, WantsExactlyOneSource) {
  PlanFlags flags;
  EXPECT_THAT(LoadPlanSpec(flags).status().message(), HasSubstr("--model"));
  flags.model = "a.json";
  flags.job = "b.json";
  EXPECT_THAT(LoadPlanSpec(flags).status().message(), HasSubstr("--job"));
}

TEST(PlanFlagsTest, TellsFilesApartByTheirKeys) {
  EXPECT_EQ(KindOfPlanFile(R"({"plan": {"units": [{"root": 1}]}, "layout": {}, "forecast": {}})"),
            PlanFileKind::kPlan);
  EXPECT_EQ(KindOfPlanFile(R"({"name": "m", "root": {"name": ""}})"), PlanFileKind::kModel);
  EXPECT_EQ(KindOfPlanFile(R"({"name": "j", "model": {"spec": {"root": {}}}})"),
            PlanFileKind::kJob);
  for (const char* text : {"", "{", "[1]", "7", "{\"plan\": {}", "[{\"root\": 1}]"}) {
    EXPECT_EQ(KindOfPlanFile(text), PlanFileKind::kJob) << text;
  }
}

TEST(PlanFlagsTest, KnowsWhetherAFlagWouldChangeAPlan) {
  PlanFlags flags;
  flags.model = "a.json";
  EXPECT_FALSE(ChangesPlan(flags));
  flags.world_size = 2;
  EXPECT_TRUE(ChangesPlan(flags));
  flags.world_size.reset();
  flags.fields.emplace_back("--wrap", "none");
  EXPECT_TRUE(ChangesPlan(flags));
}

TEST(PlanFlagsTest, PlansAtTheWorldSizeThatIsAskedFor) {
  v1::JobSpec resolved;
  resolved.mutable_mesh()->set_max_workers(4);
  PlanFlags flags;
  EXPECT_EQ(PlannedWorldSize(flags, resolved).value(), 4);
  flags.world_size = 16;
  EXPECT_EQ(PlannedWorldSize(flags, resolved).value(), 16);
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{65'537}, int64_t{1} << 40}) {
    flags.world_size = size;
    EXPECT_EQ(Field(PlannedWorldSize(flags, resolved).status()), "--world_size") << size;
  }
}

}  // namespace
}  // namespace tessera
