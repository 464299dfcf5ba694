// What each unit of a plan is told: dtypes, buffers, inputs, overrides, splits by dtype.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "coordinator/plan_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::MixedPrecisionSpec Precision(const std::string& param, const std::string& reduce = "") {
  v1::MixedPrecisionSpec precision;
  precision.set_param_dtype(param);
  precision.set_reduce_dtype(reduce);
  return precision;
}

v1::WrapOverride* Override(v1::WrapSpec* wrap, const std::string& fqn) {
  v1::WrapOverride* override_ = wrap->add_overrides();
  override_->set_fqn(fqn);
  return override_;
}

// Net(a: Block(Linear), b: Block(Linear)), 30 elements each.
v1::ModelSpec TwoBlocks() {
  return ModelOfRoot(Mod(
      "", "Net", {Mod("a", "Block", {Lin("lin", 5, 5)}), Mod("b", "Block", {Lin("lin", 5, 5)})}));
}

TEST(PlanDTypesTest, EveryDTypeButTheInputsIsSet) {
  const v1::Plan plan = Planned(TwoBlocks(), Named("always"));
  for (const v1::Unit& unit : plan.units()) {
    EXPECT_EQ(unit.param_dtype(), v1::FLOAT32);
    EXPECT_EQ(unit.reduce_dtype(), v1::FLOAT32);
    EXPECT_EQ(unit.gradient_dtype(), v1::FLOAT32);
    EXPECT_EQ(unit.unsynced_gradient_dtype(), v1::FLOAT32);
    EXPECT_FALSE(unit.has_input_dtype());
    EXPECT_FALSE(unit.has_overrides());
  }
}

TEST(PlanDTypesTest, GradientsGoWhereTheJobSays) {
  v1::MixedPrecisionSpec precision = Precision("bf16", "fp32");
  precision.set_keep_low_precision_grads(true);
  precision.set_unsynced_grad_dtype("reduce");
  const v1::Unit fsdp2 = Planned(TwoBlocks(), Named("none"), precision).units(0);
  EXPECT_EQ(fsdp2.gradient_dtype(), v1::FLOAT32);
  EXPECT_EQ(fsdp2.unsynced_gradient_dtype(), v1::FLOAT32);
  precision.set_reduce_dtype("fp16");
  EXPECT_EQ(Planned(TwoBlocks(), Named("none"), precision).units(0).gradient_dtype(), v1::FLOAT16);
  precision.set_unsynced_grad_dtype("compute");
  EXPECT_EQ(Planned(TwoBlocks(), Named("none"), precision).units(0).unsynced_gradient_dtype(),
            v1::BFLOAT16);
}

TEST(PlanDTypesTest, EveryDTypeOfAModelIsPlanned) {
  for (const char* dtype : {"float64", "float32", "float16", "bfloat16"}) {
    const v1::Plan plan = Planned(ModelOfRoot(Lin("", 5, 5, dtype)), Named("none"));
    EXPECT_EQ(DTypeName(plan.units(0).original_dtype()), dtype);
    EXPECT_EQ(plan.units(0).param_dtype(), plan.units(0).original_dtype());
  }
}

// FSDP casts the root's inputs by default, others' when asked, and only to a param_dtype given.
TEST(PlanInputsTest, RootByDefaultEveryUnitWhenAsked) {
  const v1::WrapSpec blocks = Classes({"Block"});
  const auto inputs = [&](const v1::MixedPrecisionSpec& precision) {
    std::vector<DType> dtypes;
    const v1::Plan plan = Planned(TwoBlocks(), blocks, precision);
    for (const v1::Unit& unit : plan.units()) {
      dtypes.push_back(unit.has_input_dtype() ? unit.input_dtype() : v1::DTYPE_UNSPECIFIED);
    }
    return dtypes;
  };
  constexpr DType kNone = v1::DTYPE_UNSPECIFIED;
  EXPECT_THAT(inputs(Precision("")), ElementsAre(kNone, kNone, kNone));
  EXPECT_THAT(inputs(Precision("", "bf16")), ElementsAre(kNone, kNone, kNone));
  EXPECT_THAT(inputs(Precision("bf16")), ElementsAre(kNone, kNone, v1::BFLOAT16));
  EXPECT_THAT(inputs(Precision("fp32")), ElementsAre(kNone, kNone, v1::FLOAT32));
  v1::MixedPrecisionSpec every = Precision("bf16");
  every.set_cast_forward_inputs(true);
  EXPECT_THAT(inputs(every), ElementsAre(v1::BFLOAT16, v1::BFLOAT16, v1::BFLOAT16));
  every.set_cast_root_forward_inputs(false);  // what is said of the root holds there
  EXPECT_THAT(inputs(every), ElementsAre(v1::BFLOAT16, v1::BFLOAT16, kNone));
}

// LlamaFactory PR 10820: buffers are in the plan, each with its own dtype.
TEST(PlanBuffersTest, EachHasItsOwnOriginal) {
  v1::Module block = Mod("a", "Block", {Lin("lin", 5, 5)});
  AddBuffer(&block, "mean", "float32");
  AddBuffer(&block, "wide", "float64");
  AddBuffer(&block, "count", "int64");
  v1::Module root = Mod("", "Net", {block});
  AddBuffer(&root, "mask", "bool");
  v1::MixedPrecisionSpec precision = Precision("bf16");
  const v1::WrapSpec blocks = Classes({"Block"});
  v1::Plan plan = Planned(ModelOfRoot(root), blocks, precision);
  EXPECT_EQ(UnitNamed(plan, "a").buffers(0).buffer_dtype(), v1::FLOAT32);  // not asked for
  precision.set_buffer_dtype("fp16");
  plan = Planned(ModelOfRoot(root), blocks, precision);
  const v1::Unit& unit = UnitNamed(plan, "a");
  ASSERT_EQ(unit.buffers_size(), 3);
  EXPECT_EQ(unit.buffers(0).fqn(), "a.mean");
  EXPECT_THAT(unit.buffers(0).shape(), ElementsAre(4));
  EXPECT_EQ(unit.buffers(0).original_dtype(), v1::FLOAT32);
  EXPECT_EQ(unit.buffers(0).buffer_dtype(), v1::FLOAT16);
  EXPECT_EQ(unit.buffers(1).original_dtype(), v1::FLOAT64);
  EXPECT_EQ(unit.buffers(1).buffer_dtype(), v1::FLOAT16);
  EXPECT_EQ(unit.buffers(2).buffer_dtype(), v1::INT64);
  EXPECT_EQ(UnitNamed(plan, "").buffers(0).buffer_dtype(), v1::BOOL);
  EXPECT_EQ(unit.numel(), 30);
}

TEST(PlanOverridesTest, JobThenWrapConfigThenCall) {
  v1::ModelSpec model = TwoBlocks();
  v1::WrapConfig* own = model.mutable_root()->mutable_children(0)->mutable_wrap_config();
  own->set_param_dtype("fp16");
  own->set_reduce_dtype("fp16");
  v1::WrapSpec wrap = Classes({"Block"});
  Override(&wrap, "*")->mutable_config()->set_reduce_dtype("fp64");
  Override(&wrap, "a")->mutable_config()->set_reduce_dtype("fp32");  // the later of two
  const v1::Plan plan = Planned(model, wrap, Precision("bf16"));
  const v1::Unit& a = UnitNamed(plan, "a");
  EXPECT_EQ(a.param_dtype(), v1::FLOAT16);   // its own
  EXPECT_EQ(a.reduce_dtype(), v1::FLOAT32);  // the call's
  EXPECT_EQ(a.overrides().param_dtype(), "float16");
  EXPECT_EQ(a.overrides().reduce_dtype(), "float32");
  const v1::Unit& b = UnitNamed(plan, "b");
  EXPECT_EQ(b.param_dtype(), v1::BFLOAT16);  // the job's
  EXPECT_EQ(b.reduce_dtype(), v1::FLOAT64);
  EXPECT_FALSE(b.overrides().has_param_dtype());
  EXPECT_FALSE(UnitNamed(plan, "").has_overrides());
}

TEST(PlanOverridesTest, EverySettingOfAUnit) {
  v1::Module block = Mod("a", "Block", {Lin("lin", 5, 5)});
  AddBuffer(&block, "mean", "float32");
  v1::WrapSpec wrap = Classes({"Block"});
  v1::WrapConfig* config = Override(&wrap, "a")->mutable_config();
  config->set_param_dtype("half");
  config->set_buffer_dtype("bf16");
  config->set_keep_grads_in_reduce_dtype(true);
  config->set_unsynced_grad_dtype("reduce");
  config->set_cast_forward_inputs(true);
  config->set_strategy("shard_grad_op");
  config->set_param_align_bytes(0);
  config->set_shard_align_bytes(16);
  config->set_reshard_group(1);
  const v1::Plan plan = Planned(ModelOfRoot(Mod("", "Net", {block})), wrap, Precision("", "fp32"));
  const v1::Unit& a = UnitNamed(plan, "a");
  EXPECT_EQ(a.param_dtype(), v1::FLOAT16);
  EXPECT_EQ(a.reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(a.gradient_dtype(), v1::FLOAT32);
  EXPECT_EQ(a.unsynced_gradient_dtype(), v1::FLOAT32);
  EXPECT_EQ(a.input_dtype(), v1::FLOAT16);
  EXPECT_EQ(a.buffers(0).buffer_dtype(), v1::BFLOAT16);
  EXPECT_EQ(a.overrides().ShortDebugString(),
            "param_dtype: \"float16\" buffer_dtype: \"bfloat16\" keep_grads_in_reduce_dtype: true "
            "unsynced_grad_dtype: \"reduce\" cast_forward_inputs: true strategy: \"shard_grad_op\" "
            "param_align_bytes: 0 shard_align_bytes: 16 reshard_group: 1");
}

// Saying what is so anyway changes neither the unit nor the fingerprint; "" is the model's dtype.
TEST(PlanOverridesTest, WhatIsAsTheJobIsNoOverride) {
  v1::WrapSpec wrap = Classes({"Block"});
  const v1::MixedPrecisionSpec precision = Precision("bf16", "fp32");
  const std::string before = Planned(TwoBlocks(), wrap, precision).plan_fingerprint();
  v1::WrapConfig* config = Override(&wrap, "a")->mutable_config();
  config->set_param_dtype("bfloat16");
  config->set_strategy("full_shard");
  config->set_cast_forward_inputs(false);
  config->set_unsynced_grad_dtype("compute");
  config->set_param_align_bytes(16);
  const v1::Plan same = Planned(TwoBlocks(), wrap, precision);
  EXPECT_FALSE(UnitNamed(same, "a").has_overrides());
  EXPECT_EQ(same.plan_fingerprint(), before);
  config->set_param_dtype("");
  const v1::Plan full = Planned(TwoBlocks(), wrap, precision);
  EXPECT_EQ(UnitNamed(full, "a").param_dtype(), v1::FLOAT32);
  EXPECT_TRUE(UnitNamed(full, "a").overrides().has_param_dtype());
  EXPECT_NE(full.plan_fingerprint(), before);
}

TEST(PlanOverridesTest, CallBringsABatchNormBackIntoMixedPrecision) {
  v1::Module norm = Lin("bn", 5, 5);
  norm.set_class_name("BatchNorm1d");
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {norm, Lin("lin", 5, 5)}));
  v1::WrapSpec wrap = Classes({"Linear"});
  Override(&wrap, "bn")->mutable_config()->set_param_dtype("bf16");
  EXPECT_EQ(UnitNamed(Planned(model, wrap, Precision("bf16")), "bn").param_dtype(), v1::BFLOAT16);
}

TEST(PlanOverridesTest, RefusesWhatDoesNotFit) {
  v1::WrapSpec unknown = Classes({"Block"});
  Override(&unknown, "a.lin")->mutable_config()->set_param_dtype("bf16");
  EXPECT_EQ(std::string(TryPlan(TwoBlocks(), unknown).status().message()),
            "wrap.overrides[0].fqn: \"a.lin\" matches no unit of the plan; name one, or make it a "
            "unit");
  v1::WrapSpec hybrid = Classes({"Block"});
  Override(&hybrid, "a")->mutable_config()->set_strategy("hybrid_shard");
  EXPECT_EQ(std::string(TryPlan(TwoBlocks(), hybrid).status().message()),
            "wrap.overrides: wrap.overrides[0] (\"a\") has the strategy hybrid_shard, which does "
            "not go with mesh.strategy full_shard; use full_shard with shard_grad_op, or the two "
            "hybrid ones together");
  v1::ModelSpec model = TwoBlocks();
  model.mutable_root()->mutable_children(0)->mutable_wrap_config()->set_strategy("no_shard");
  EXPECT_EQ(Field(TryPlan(model, Classes({"Block"})).status()), "a");
  model.mutable_root()->mutable_children(0)->mutable_wrap_config()->set_strategy("all_shard");
  EXPECT_EQ(std::string(ValidateModelSpec(model).message()),
            "a: has a wrap_config whose strategy: \"all_shard\" is unknown; use full_shard, "
            "shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2");
}

// Block(w float32, x bfloat16, y float16, sub: Inner(z float32)), and a root of float32.
v1::ModelSpec Mixed() {
  v1::Module inner = Mod("sub", "Inner");
  AddWeight(&inner, "z", {3});
  v1::Module block = Mod("a", "Block", {inner});
  AddWeight(&block, "w", {4});
  AddWeight(&block, "x", {5}, "bfloat16");
  AddWeight(&block, "y", {6}, "float16");
  AddWeight(&block, "v", {7}, "bfloat16");
  AddBuffer(&block, "mask", "bool");
  v1::Module root = Mod("", "Net", {block});
  AddWeight(&root, "r", {8});
  return ModelOfRoot(root);
}

TEST(MixedDTypesTest, SplitMakesAUnitForEachDType) {
  v1::WrapSpec wrap = Classes({"Block", "Inner"});
  EXPECT_EQ(Field(TryPlan(Mixed(), wrap).status()), "a.x");
  wrap.set_mixed_dtypes("split");
  const v1::Plan plan = Planned(Mixed(), wrap, Precision("", "fp32"));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("a.sub", "a:float16", "a:bfloat16", "a", ""));
  EXPECT_EQ(UnitNamed(plan, "a").numel(), 4);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").numel(), 12);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").original_dtype(), v1::BFLOAT16);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(UnitNamed(plan, "a:float16").class_name(), "Block");
  EXPECT_EQ(UnitNamed(plan, "a").buffers_size(), 1);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").buffers_size(), 0);
  // A chain, so that all are whole while what they enclose is.
  const std::vector<int> around = {1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(plan.units(i).enclosing_unit(), around[i]);
  EXPECT_THAT(NotesOf(plan), HasSubstr("What is bfloat16 in unit \"a\" is a unit of its own, "
                                       "\"a:bfloat16\" (wrap.mixed_dtypes split)."));
}

TEST(MixedDTypesTest, OverridesMeanAllUnitsOfAModuleOrOne) {
  v1::WrapSpec wrap = Classes({"Block"});
  wrap.set_mixed_dtypes("split");
  Override(&wrap, "a")->mutable_config()->set_reduce_dtype("fp32");
  v1::Plan plan = Planned(Mixed(), wrap);
  EXPECT_EQ(UnitNamed(plan, "a:float16").reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").reduce_dtype(), v1::FLOAT32);
  wrap.mutable_overrides(0)->set_fqn("a:float16");
  plan = Planned(Mixed(), wrap);
  EXPECT_EQ(UnitNamed(plan, "a:float16").reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(UnitNamed(plan, "a:bfloat16").reduce_dtype(), v1::BFLOAT16);
}

TEST(MixedDTypesTest, RootSplitsToo) {
  v1::WrapSpec wrap = Named("none");
  wrap.set_mixed_dtypes("split");
  const v1::Plan plan = Planned(Mixed(), wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre(":float16", ":bfloat16", ""));
  EXPECT_FALSE(plan.units(2).has_enclosing_unit());
}

TEST(MixedDTypesTest, RefusesAModuleThatHasTheNameOfAUnit) {
  v1::ModelSpec model = Mixed();
  *model.mutable_root()->add_children() = Mod("a:float16", "Block");
  v1::WrapSpec wrap = Classes({"Block"});
  wrap.set_mixed_dtypes("split");
  EXPECT_EQ(Field(TryPlan(model, wrap).status()), "a:float16");
}

}  // namespace
}  // namespace tessera
