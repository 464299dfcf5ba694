// The wrap tests of FairScale (F...) and of PyTorch (P...) as vectors: the same trees and
// settings, and which modules their tests assert to be wrapped. FairScale leaves the root to the
// policy, PyTorch's constructor makes it a unit always.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/errors.h"
#include "coordinator/plan_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::ModelSpec Lin30() { return ModelOfRoot(Lin("", 5, 5)); }

// Sequential(Linear, Sequential(Linear, Linear)): 90 elements.
v1::ModelSpec F4Tree() {
  return ModelOfRoot(Seq("", {Lin("0", 5, 5), Seq("1", {Lin("0", 5, 5), Lin("1", 5, 5)})}));
}

// Sequential(Linear, Linear, Sequential(Linear, Linear)): 120 elements.
v1::ModelSpec F4PrimeTree() {
  return ModelOfRoot(
      Seq("", {Lin("0", 5, 5), Lin("1", 5, 5), Seq("2", {Lin("0", 5, 5), Lin("1", 5, 5)})}));
}

v1::ModelSpec ListOf30s() {
  return ModelOfRoot(Mod("", "ModuleList", {Lin("0", 5, 5), Lin("1", 5, 5)}));
}

v1::ModelSpec ListOf110() { return ModelOfRoot(Mod("", "ModuleList", {Lin("0", 10, 10)})); }

v1::ModelSpec WithAttention() { return ModelOfRoot(Seq("", {Lin("0", 10, 10), Mha("1", 100)})); }

v1::ModelSpec WithList() {
  return ModelOfRoot(Seq("", {Lin("0", 10, 10), Mod("1", "ModuleList", {Lin("0", 10, 10)})}));
}

v1::WrapSpec LinearIsALeaf() {
  v1::WrapSpec wrap = Size(40);
  wrap.add_force_leaf_classes("MultiheadAttention");
  wrap.add_force_leaf_classes("Linear");
  return wrap;
}

// wrap() in a context: what is asked for by hand is an annotation here.
TEST(FairScaleWrapTest, F1WrapInAContext) {
  v1::ModelSpec model = Lin30();
  model.mutable_root()->set_wrap(true);
  EXPECT_THAT(UnitFqns(Planned(model, ByPolicy(Named("annotated")))), ElementsAre(""));
}

TEST(FairScaleWrapTest, F2NothingAskedForNothingWrapped) {
  const v1::Plan plan = Planned(Lin30(), ByPolicy(Named("annotated")));
  EXPECT_THAT(UnitFqns(plan), IsEmpty());
  EXPECT_THAT(plan.orphans(), ElementsAre("weight", "bias"));
}

// The call's setting wins over the context's.
TEST(FairScaleWrapTest, F3OverrideDefaults) {
  v1::ModelSpec model = Lin30();
  model.mutable_root()->set_wrap(true);
  v1::WrapSpec wrap = ByPolicy(Named("annotated"));
  wrap.set_param_align_bytes(16);
  v1::WrapOverride* call = wrap.add_overrides();
  call->set_fqn("");
  call->mutable_config()->set_param_align_bytes(0);
  const v1::Plan plan = Planned(model, wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre(""));
  EXPECT_TRUE(plan.units(0).overrides().has_param_align_bytes());
  EXPECT_EQ(plan.units(0).overrides().param_align_bytes(), 0);
}

TEST(FairScaleWrapTest, F4AutoWrap) {
  const v1::Plan plan = Planned(F4Tree(), ByPolicy(Size(60)));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("1"));
  EXPECT_EQ(plan.units(0).numel(), 60);
  EXPECT_FALSE(plan.units(0).has_enclosing_unit());
  // fairscale #791: the root was left unwrapped, and nobody was told.
  EXPECT_THAT(plan.orphans(), ElementsAre("0.weight", "0.bias"));
  EXPECT_THAT(NotesOf(plan), HasSubstr("2 parameters of 30 elements in no unit"));
  // 61 is one more than there is.
  EXPECT_THAT(UnitFqns(Planned(F4Tree(), ByPolicy(Size(61)))), ElementsAre(""));
}

TEST(FairScaleWrapTest, F4PrimeAutoWrap) {
  EXPECT_THAT(UnitFqns(Planned(F4PrimeTree(), ByPolicy(Size(40)))), ElementsAre("2", ""));
}

TEST(FairScaleWrapTest, F5SkipRootChecks) {
  v1::WrapSpec wrap = ByPolicy(Size(60));
  wrap.set_skip_root_check(true);
  const v1::Plan plan = Planned(F4Tree(), wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("1", ""));
  EXPECT_THAT(plan.orphans(), IsEmpty());
  // It passes over the wrap test, and not over the gate.
  wrap.set_min_params(91);
  EXPECT_THAT(UnitFqns(Planned(F4Tree(), wrap)), IsEmpty());
}

TEST(FairScaleWrapTest, F6PresetExcludeWrap) {
  const v1::Plan plan = Planned(ListOf30s(), ByPolicy(Size(40)));
  EXPECT_THAT(UnitFqns(plan), IsEmpty());
  EXPECT_EQ(plan.orphans_size(), 4);
}

TEST(FairScaleWrapTest, F7PresetExcludeWrapIncludeChildren) {
  EXPECT_THAT(UnitFqns(Planned(ListOf110(), ByPolicy(Size(40)))), ElementsAre("0"));
}

TEST(FairScaleWrapTest, F8PresetForceLeaf) {
  const v1::Plan plan = Planned(WithAttention(), ByPolicy(Size(40)));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("0", ""));
  EXPECT_EQ(UnitNamed(plan, "").numel(), 40'400);
}

TEST(FairScaleWrapTest, F9ForceLeafCustom) {
  const v1::Plan plan = Planned(WithList(), ByPolicy(LinearIsALeaf()));
  EXPECT_THAT(UnitFqns(plan), ElementsAre(""));
  EXPECT_EQ(plan.units(0).numel(), 220);
}

// One rank, mixed precision: the plan of F4' with its dtypes.
TEST(FairScaleWrapTest, F10SmokeAutocast) {
  v1::MixedPrecisionSpec precision;
  precision.set_param_dtype("fp16");
  const v1::Plan plan = Planned(F4PrimeTree(), ByPolicy(Size(40)), precision);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("2", ""));
  for (const v1::Unit& unit : plan.units()) {
    EXPECT_EQ(unit.param_dtype(), v1::FLOAT16);
    EXPECT_EQ(unit.reduce_dtype(), v1::FLOAT16);
    EXPECT_EQ(unit.gradient_dtype(), v1::FLOAT32);
  }
}

// fairscale #446 added its module_blocklist to the preset; #467 made the same list replace it.
TEST(FairScaleWrapTest, F11Blocklist) {
  v1::WrapSpec attention = Size(40);
  attention.add_force_leaf_classes("MultiheadAttention");
  EXPECT_THAT(UnitFqns(Planned(WithAttention(), ByPolicy(attention))), ElementsAre("0", ""));
  EXPECT_THAT(UnitFqns(Planned(WithList(), ByPolicy(LinearIsALeaf()))), ElementsAre(""));
}

TEST(PyTorchWrapTest, P1AutoWrapApiAndSmoke) {
  const v1::Plan plan = Planned(F4PrimeTree(), Size(40));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("2", ""));
  EXPECT_EQ(plan.units(0).numel(), 60);
  EXPECT_EQ(plan.units(1).numel(), 60);
}

TEST(PyTorchWrapTest, P2AlwaysWrap) {
  EXPECT_THAT(UnitFqns(Planned(F4PrimeTree(), Named("always"))),
              ElementsAre("0", "1", "2.0", "2.1", "2", ""));
}

TEST(PyTorchWrapTest, P3Exclude) {
  EXPECT_THAT(UnitFqns(Planned(ListOf30s(), Size(40))), ElementsAre(""));
}

TEST(PyTorchWrapTest, P4ExcludeIncludeChildren) {
  EXPECT_THAT(UnitFqns(Planned(ListOf110(), Size(40))), ElementsAre("0", ""));
}

TEST(PyTorchWrapTest, P5ForceLeaf) {
  const v1::Plan plan = Planned(WithAttention(), Size(40));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("0", ""));
  EXPECT_EQ(plan.units(1).parameters_size(), 4);  // in_proj and out_proj
}

TEST(PyTorchWrapTest, P6ForceLeafCustom) {
  EXPECT_THAT(UnitFqns(Planned(WithList(), LinearIsALeaf())), ElementsAre(""));
}

TEST(PyTorchWrapTest, P7AlwaysAndIgnored) {
  v1::WrapSpec wrap = Named("always");
  wrap.add_ignore("1");
  wrap.add_ignore("2.0");
  const v1::Plan plan = Planned(F4PrimeTree(), wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("0", "2.1", "2", ""));
  EXPECT_THAT(plan.ignored(), ElementsAre("1.weight", "1.bias", "2.0.weight", "2.0.bias"));
}

TEST(PyTorchWrapTest, P8SizeAndIgnored) {
  v1::WrapSpec wrap = Size(40);
  wrap.add_ignore("1");
  wrap.add_ignore("2.0");
  const v1::Plan plan = Planned(F4PrimeTree(), wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre(""));
  EXPECT_EQ(plan.units(0).numel(), 60);
  // 60 are counted in all: the gate of the root holds what 61 asks.
  wrap.set_min_params(61);
  EXPECT_THAT(UnitFqns(Planned(F4PrimeTree(), ByPolicy(wrap))), IsEmpty());
}

TEST(PyTorchWrapTest, P9MainWrapApi) {
  v1::Module lin4 = Mod("lin4", "Nested", {Lin("nested_lin", 1, 1)});
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "MyModel", {Lin("lin1", 1, 1), Lin("lin2", 1, 1), Lin("lin3", 1, 1), lin4}));
  // With no minimum a module with nothing left passes too (fairscale #437).
  EXPECT_THAT(UnitFqns(Planned(model, Size(0))),
              ElementsAre("lin1", "lin2", "lin3", "lin4.nested_lin", "lin4", ""));
}

// A module that is wrapped already cannot be given: a ModelSpec has none. What comes near, saying
// of a unit twice what it is, is no error: tag in many passes, apply once (fairscale #649, #685).
TEST(PyTorchWrapTest, P10WrappedAlready) {
  v1::ModelSpec model = F4Tree();
  model.mutable_root()->mutable_children(0)->set_wrap(true);
  v1::WrapSpec wrap = Named("annotated");
  wrap.add_wrap_patterns("0");
  EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre("0", ""));
}

v1::Module BatchNorm(const std::string& name, const std::string& class_name) {
  v1::Module module = Mod(name, class_name);
  module.add_base_classes("_BatchNorm");
  AddWeight(&module, "weight", {10});
  AddWeight(&module, "bias", {10});
  AddBuffer(&module, "running_mean", "float32");
  AddBuffer(&module, "num_batches_tracked", "int64");
  return module;
}

v1::Module BatchNorms(const std::string& name) {
  v1::Module lin = Mod("lin", "Linear");
  AddWeight(&lin, "weight", {10, 10});
  return Mod(name, "BatchNormNet",
             {lin, BatchNorm("bn1", "BatchNorm1d"), BatchNorm("bn2", "BatchNorm2d"),
              BatchNorm("bn3", "BatchNorm3d"), BatchNorm("sync_bn", "SyncBatchNorm")});
}

v1::WrapSpec AnyOf(const std::vector<v1::WrapSpec>& policies) {
  v1::WrapSpec wrap;
  for (const v1::WrapSpec& policy : policies) *wrap.add_any_of() = policy;
  return wrap;
}

TEST(PyTorchWrapTest, P11WrapBatchnormIndividuallyAndNever) {
  const v1::ModelSpec model = ModelOfRoot(BatchNorms(""));
  const v1::WrapSpec individually = Classes({"_BatchNorm"});
  for (const v1::WrapSpec& wrap : {individually, AnyOf({Named("none"), individually})}) {
    EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre("bn1", "bn2", "bn3", "sync_bn", ""));
    EXPECT_THAT(UnitFqns(Planned(model, ByPolicy(wrap))),
                ElementsAre("bn1", "bn2", "bn3", "sync_bn"));
  }
}

TEST(PyTorchWrapTest, P12BatchNormAlwaysWrapped) {
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {BatchNorms("bn_container")}));
  const v1::WrapSpec container = Classes({"BatchNormNet"});
  EXPECT_THAT(UnitFqns(Planned(model, AnyOf({container, Classes({"_BatchNorm"})}))),
              ElementsAre("bn_container.bn1", "bn_container.bn2", "bn_container.bn3",
                          "bn_container.sync_bn", "bn_container", ""));
  EXPECT_THAT(UnitFqns(Planned(model, container)), ElementsAre("bn_container", ""));
}

TEST(PyTorchWrapTest, P13TransformerWithTiedParameters) {
  v1::Module embedding = Mod("embed_tokens", "Embedding");
  AddWeight(&embedding, "weight", {8, 4});
  v1::Module output = Mod("output_proj", "Linear");
  AddWeight(&output, "weight", {8, 4})->set_tied_to("embed_tokens.weight");
  const auto layers = [](const std::string& name, const std::string& class_name) {
    return Mod(name, class_name,
               {Mod("layers", "ModuleList",
                    {Mod("0", class_name + "Layer", {Lin("linear1", 4, 4)}),
                     Mod("1", class_name + "Layer", {Lin("linear1", 4, 4)})})});
  };
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "TransformerWithSharedParams",
          {embedding,
           Mod("transformer", "Transformer",
               {layers("encoder", "TransformerEncoder"), layers("decoder", "TransformerDecoder")}),
           output}));
  const v1::Plan plan =
      Planned(model, Classes({"TransformerEncoderLayer", "TransformerDecoderLayer"}));
  EXPECT_THAT(UnitFqns(plan),
              ElementsAre("transformer.encoder.layers.0", "transformer.encoder.layers.1",
                          "transformer.decoder.layers.0", "transformer.decoder.layers.1", ""));
  EXPECT_THAT(UnitNamed(plan, "").parameters(0).tied_fqns(), ElementsAre("output_proj.weight"));
}

// What was wrapped by hand while building is an annotation; what was not stays with its parent.
TEST(PyTorchWrapTest, P14WrapDisabledOutside) {
  v1::Module outer = Seq("0", {Lin("lin", 5, 5)});
  outer.set_wrap(true);
  EXPECT_THAT(UnitFqns(Planned(ModelOfRoot(Seq("", {outer})), ByPolicy(Named("annotated")))),
              ElementsAre("0"));
}

// A call's settings win over the context's; a mesh for one unit is its reshard_group here.
TEST(PyTorchWrapTest, P15OverrideWins) {
  v1::ModelSpec model = Lin30();
  model.mutable_root()->mutable_wrap_config()->set_reshard_group(1);
  v1::WrapSpec wrap = ByPolicy(Named("annotated"));
  v1::WrapOverride* call = wrap.add_overrides();
  call->set_fqn("");
  call->mutable_config()->set_reshard_group(2);
  EXPECT_EQ(Planned(model, wrap).units(0).overrides().reshard_group(), 2);
}

v1::Module Frozen(v1::Module module) {
  for (v1::Parameter& parameter : *module.mutable_parameters()) parameter.set_requires_grad(false);
  return module;
}

v1::ModelSpec LoraModel() {
  std::vector<v1::Module> layers;
  for (int i = 0; i < 4; ++i) {
    v1::Module attention = Mod("attn", "LoraAttention",
                               {Frozen(Lin("q_proj", 8, 8)), Frozen(Lin("v_proj", 8, 8)),
                                Mod("lora_A", "LoraA", {}), Mod("lora_B", "LoraB", {})});
    AddWeight(attention.mutable_children(2), "weight", {2, 8});
    AddWeight(attention.mutable_children(3), "weight", {8, 2});
    layers.push_back(Mod(absl::StrCat(i), "LoraDecoder", {attention, Frozen(Lin("mlp", 8, 8))}));
  }
  return ModelOfRoot(Mod("", "LoraModel", {Mod("layers", "ModuleList", layers)}));
}

TEST(PyTorchWrapTest, P16ValidateFrozenParams) {
  const v1::ModelSpec model = LoraModel();
  EXPECT_THAT(NotesOf(Planned(model, Classes({"LoraA", "LoraB", "LoraAttention", "LoraDecoder"}))),
              testing::Not(HasSubstr("frozen")));
  v1::WrapSpec without_a = Classes({"LoraB", "LoraAttention", "LoraDecoder"});
  const v1::Plan mixed = Planned(model, without_a);
  // The first offender, with one trainable and four frozen names; 144 frozen elements of float32.
  EXPECT_EQ(mixed.notes(0),
            "unit \"layers.0.attn\" holds 4 frozen parameters (\"layers.0.attn.q_proj.weight\", "
            "\"layers.0.attn.q_proj.bias\", \"layers.0.attn.v_proj.weight\", "
            "\"layers.0.attn.v_proj.bias\") of 144 elements beside 1 trainable parameter "
            "(\"layers.0.attn.lora_A.weight\") of 16: its gradients have room for all of them, 576 "
            "bytes more on a rank while it is unsharded and 576 bytes more over all shards.");
  EXPECT_EQ(UnitNamed(mixed, "layers.0.attn").trainable_numel(), 16);
  without_a.add_ignore("layers.*.attn.lora_A.weight");
  const v1::Plan ignored = Planned(model, without_a);
  EXPECT_THAT(NotesOf(ignored), testing::Not(HasSubstr("frozen")));
  EXPECT_EQ(ignored.ignored_size(), 4);
}

}  // namespace
}  // namespace tessera
