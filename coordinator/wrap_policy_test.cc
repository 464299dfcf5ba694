// Which modules become units, beyond the vectors of FairScale and PyTorch (wrap_vectors_test.cc).
#include "coordinator/wrap_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "coordinator/plan_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

v1::WrapSpec AnyOf(const std::vector<v1::WrapSpec>& policies) {
  v1::WrapSpec wrap;
  for (const v1::WrapSpec& policy : policies) *wrap.add_any_of() = policy;
  return wrap;
}

v1::Module Weights(const std::string& name, const std::string& class_name, int64_t numel,
                   const std::vector<v1::Module>& children = {}) {
  v1::Module module = Mod(name, class_name, children);
  AddWeight(&module, "w", {numel});
  return module;
}

v1::Module Tied(const std::string& name, const std::string& holder, int64_t numel) {
  v1::Module module = Weights(name, "Leaf", numel);
  module.mutable_parameters(0)->set_tied_to(holder);
  return module;
}

// "Attention Is All You Need", the large one as fairseq has it: 6 + 6 layers of width 1,024 and
// 4,096, one embedding of 37,000 words for input, output and projection. About 214 million.
v1::ModelSpec AttentionIsAllYouNeed() {
  const auto attention = [](const std::string& name) {
    return Mod(name, "MultiheadAttention",
               {Lin("k_proj", 1024, 1024), Lin("v_proj", 1024, 1024), Lin("q_proj", 1024, 1024),
                Lin("out_proj", 1024, 1024)});
  };
  const auto norm = [](const std::string& name) { return Weights(name, "LayerNorm", 2048); };
  std::vector<v1::Module> encoder, decoder;
  for (int i = 0; i < 6; ++i) {
    encoder.push_back(Mod(absl::StrCat(i), "TransformerEncoderLayer",
                          {attention("self_attn"), norm("ln1"), Lin("fc1", 1024, 4096),
                           Lin("fc2", 4096, 1024), norm("ln2")}));
    decoder.push_back(
        Mod(absl::StrCat(i), "TransformerDecoderLayer",
            {attention("self_attn"), norm("ln1"), attention("encoder_attn"), norm("ln2"),
             Lin("fc1", 1024, 4096), Lin("fc2", 4096, 1024), norm("ln3")}));
  }
  v1::Module embedding = Mod("embed_tokens", "Embedding");
  AddWeight(&embedding, "weight", {37'000, 1024});
  v1::Module shared = embedding;
  shared.mutable_parameters(0)->set_tied_to("encoder.embed_tokens.weight");
  v1::Module projection = shared;
  projection.set_name("output_projection");
  projection.set_class_name("Linear");
  return ModelOfRoot(
      Mod("", "TransformerModel",
          {Mod("encoder", "TransformerEncoder", {embedding, Mod("layers", "ModuleList", encoder)}),
           Mod("decoder", "TransformerDecoder",
               {shared, Mod("layers", "ModuleList", decoder), projection})}));
}

// FairScale's default of 100 million was settled on this model: it splits encoder and decoder.
TEST(SizePolicyTest, AttentionIsAllYouNeedIsEncoderAndDecoder) {
  const v1::Plan plan = Planned(AttentionIsAllYouNeed(), Named("size"));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("encoder", "decoder", ""));
  // A layer's attention has 4 x (1024^2 + 1024), its feed-forward 2 x 4 x 1024^2 + 5 x 1024; the
  // norms have 2,048. The embedding is shared by both, so that it is in the root.
  constexpr int64_t kAttention = 4 * (1024 * 1024 + 1024);
  constexpr int64_t kFeedForward = 8 * 1024 * 1024 + 5 * 1024;
  EXPECT_EQ(UnitNamed(plan, "encoder").numel(), 6 * (kAttention + kFeedForward + 2 * 2048));
  EXPECT_EQ(UnitNamed(plan, "decoder").numel(), 6 * (2 * kAttention + kFeedForward + 3 * 2048));
  EXPECT_EQ(UnitNamed(plan, "").numel(), 37'000 * 1024);
  EXPECT_THAT(plan.notes(0), HasSubstr("\"encoder.embed_tokens.weight\" is in the root unit"));
}

TEST(SizePolicyTest, CustomSetsReplaceTheDefault) {
  const v1::ModelSpec list =
      ModelOfRoot(Mod("", "Net", {Mod("l", "ModuleList", {Lin("0", 5, 5), Lin("1", 5, 5)})}));
  EXPECT_THAT(UnitFqns(Planned(list, Size(40))), ElementsAre(""));
  v1::WrapSpec wrap = Size(40);
  wrap.add_exclude_classes("Other");
  EXPECT_THAT(UnitFqns(Planned(list, wrap)), ElementsAre("l", ""));
  wrap.set_exclude_classes(0, "");  // the empty set
  EXPECT_THAT(UnitFqns(Planned(list, wrap)), ElementsAre("l", ""));
  const v1::ModelSpec attention = ModelOfRoot(Seq("", {Mha("a", 100)}));
  EXPECT_THAT(UnitFqns(Planned(attention, Size(10'000))), ElementsAre(""));
  wrap = Size(10'000);
  wrap.add_force_leaf_classes("");
  EXPECT_THAT(UnitFqns(Planned(attention, wrap)), ElementsAre("a.out_proj", "a", ""));
}

TEST(SizePolicyTest, SubclassesMatchByBaseClasses) {
  v1::Module list = Mod("l", "MyList", {Lin("0", 5, 5), Lin("1", 5, 5)});
  list.add_base_classes("ModuleList");
  EXPECT_THAT(UnitFqns(Planned(ModelOfRoot(Mod("", "Net", {list})), Size(40))), ElementsAre(""));
}

TEST(SizePolicyTest, FrozenCountsAndBuffersDoNot) {
  v1::Module frozen = Weights("a", "Leaf", 100);
  frozen.mutable_parameters(0)->set_requires_grad(false);
  v1::Module buffers = Weights("b", "Leaf", 99);
  AddBuffer(&buffers, "big", "float32");
  EXPECT_THAT(UnitFqns(Planned(ModelOfRoot(Mod("", "Net", {frozen, buffers})), Size(100))),
              ElementsAre("a", ""));
}

// The numel decides: dtypes do not.
TEST(SizePolicyTest, BytesDoNotMatter) {
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net", {Lin("a", 9, 10, "float64"), Lin("b", 10, 10, "float64")}));
  EXPECT_THAT(UnitFqns(Planned(model, Size(110))), ElementsAre("b", ""));
}

TEST(SizePolicyTest, TiedTensorCountsOnceInASubtree) {
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net",
                      {Mod("a", "Block", {Weights("x", "Leaf", 60), Tied("y", "a.x.w", 60)}),
                       Mod("b", "Block", {Weights("x", "Leaf", 60), Weights("y", "Leaf", 60)})}));
  EXPECT_THAT(UnitFqns(Planned(model, Size(100))), ElementsAre("b", ""));
}

// Each of two units reports the tensor that they share, so that too little seems to be left.
TEST(SizePolicyTest, NegativeRemainderIsNotedAndDecidesNothingSilently) {
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net",
                      {Mod("t", "Block",
                           {Weights("a", "Leaf", 100), Tied("b", "t.a.w", 100),
                            Tied("c", "t.a.w", 100), Weights("rest", "Other", 50)})}));
  const v1::Plan plan = Planned(model, Size(100));
  // 150 held, 300 reported: fewer than none are left, though 50 are.
  EXPECT_THAT(UnitFqns(plan), ElementsAre("t.a", "t.b", "t.c", ""));
  EXPECT_THAT(NotesOf(plan),
              HasSubstr("\"t\" is no unit: it holds 150 elements and the units below it report "
                        "300, since each reports what is tied between them; 50 are in none of "
                        "them."));
}

TEST(SizePolicyTest, DoubleCountThatDecidesIsNoted) {
  // 260 held; a and b report 100 each, of which 60 are one tensor: 60 seem left, 120 are.
  v1::Module b = Weights("b", "Leaf", 40);
  AddWeight(&b, "shared", {60})->set_tied_to("t.a.shared");
  v1::Module a = Weights("a", "Leaf", 40);
  AddWeight(&a, "shared", {60});
  const v1::ModelSpec model = ModelOfRoot(Mod(
      "", "Net", {Mod("t", "Block", {a, b, Weights("c", "Leaf", 60), Weights("d", "Leaf", 60)})}));
  const v1::Plan plan = Planned(model, Size(100));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("t.a", "t.b", ""));
  EXPECT_THAT(NotesOf(plan), HasSubstr("\"t\" is no unit: it holds 260 elements"));
  EXPECT_THAT(NotesOf(plan), HasSubstr("report 200"));
  EXPECT_THAT(NotesOf(plan), HasSubstr("120 are in none"));
  // Where it does not decide, nothing is said: 10 seem left, 70 are, and both are too few.
  const v1::ModelSpec smaller = ModelOfRoot(Mod(
      "", "Net", {Mod("t", "Block", {a, b, Weights("c", "Leaf", 35), Weights("d", "Leaf", 35)})}));
  EXPECT_THAT(NotesOf(Planned(smaller, Size(100))), Not(HasSubstr("is no unit")));
}

TEST(SizePolicyTest, SharedModuleIsAskedAtItsFirstName) {
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net",
                      {Mod("p", "Block", {Weights("s", "Leaf", 100), Alias("t", "p.s")}),
                       Mod("q", "Block", {Alias("u", "p.s"), Weights("v", "Leaf", 100)})}));
  const v1::Plan plan = Planned(model, Size(100));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("p.s", "q.v", ""));
  EXPECT_THAT(UnitNamed(plan, "p.s").parameters(0).tied_fqns(), ElementsAre("p.t.w", "q.u.w"));
  // q holds 200; its second name for a unit reports 100, its own unit 100.
  EXPECT_THAT(NotesOf(plan), Not(HasSubstr("is no unit")));
}

TEST(SizePolicyTest, DefaultWhereNothingIsSaidOfAModel) {
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "Net", {Weights("a", "Leaf", 100'000'000), Weights("b", "Leaf", 99'999'999)}));
  EXPECT_THAT(UnitFqns(Planned(model, {})), ElementsAre("a", ""));
}

// _or_policy asks every policy both questions: what one lets through, another wraps.
TEST(AnyOfTest, OneYesIsEnoughForBothQuestions) {
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "Net", {Mod("small", "Block", {Weights("a", "Leaf", 10)}), Mha("mha", 100)}));
  EXPECT_THAT(UnitFqns(Planned(model, Size(10'000))), ElementsAre(""));
  // The class policy opens the gate of the size policy: inside a force-leaf class, too.
  EXPECT_THAT(UnitFqns(Planned(model, AnyOf({Size(10'000), Classes({"Leaf"})}))),
              ElementsAre("small.a", "mha.out_proj", "mha", ""));
  EXPECT_THAT(UnitFqns(Planned(model, AnyOf({Size(10'000), Named("none")}))), ElementsAre(""));
  EXPECT_THAT(UnitFqns(Planned(model, AnyOf({Named("none"), Named("none")}))), ElementsAre(""));
  EXPECT_THAT(UnitFqns(Planned(model, ByPolicy(AnyOf({Named("always"), Named("none")})))),
              ElementsAre("small.a", "small", "mha.out_proj", "mha", ""));
}

TEST(AnyOfTest, MissingClassNamesItsPolicy) {
  const absl::Status status =
      TryPlan(ModelOfRoot(Lin("", 2, 2)), AnyOf({Named("none"), Classes({"Blok"})})).status();
  EXPECT_EQ(Field(status), "wrap.any_of[1].wrap_classes");
}

TEST(AnnotatedTest, WrapAndWrapConfigAreAnnotations) {
  v1::Module by_config = Weights("b", "Leaf", 1);
  by_config.mutable_wrap_config()->set_param_dtype("fp16");
  v1::Module never = Weights("c", "Leaf", 1);
  never.mutable_wrap_config()->set_param_dtype("fp16");
  never.set_wrap(false);
  v1::Module by_flag = Weights("a", "Leaf", 1);
  by_flag.set_wrap(true);
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net", {by_flag, by_config, never, Weights("d", "Leaf", 1)}));
  const v1::Plan plan = Planned(model, Named("annotated"));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("a", "b", ""));
  EXPECT_EQ(UnitNamed(plan, "b").param_dtype(), v1::FLOAT16);
  EXPECT_THAT(NotesOf(plan), HasSubstr("\"c\" has a wrap_config and is no unit"));
  EXPECT_THAT(NotesOf(Planned(ModelOfRoot(Lin("", 2, 2)), Named("annotated"))),
              HasSubstr("No module below the root has wrap"));
}

TEST(PatternTest, MatchingModulesAreUnitsWhateverThePolicySays) {
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "Net", {Mod("layers", "ModuleList", {Mha("0", 10), Mha("1", 10)}), Mha("x", 10)}));
  v1::WrapSpec wrap = Named("none");
  wrap.add_wrap_patterns("layers.*");
  EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre("layers.0", "layers.1", ""));
  // Also below a gate that holds the policy back; and then they count.
  wrap = Size(440);
  wrap.add_wrap_patterns("layers.0.out_*");
  EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre("layers.0.out_proj", ""));
  EXPECT_EQ(UnitNamed(Planned(model, wrap), "").numel(), 3 * 440 - 110);
  wrap = ByPolicy(Named("none"));
  wrap.add_wrap_patterns("");
  EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre(""));
  wrap.add_wrap_patterns("layrs.*");
  EXPECT_EQ(
      std::string(TryPlan(model, wrap).status().message()),
      "wrap.wrap_patterns: \"layrs.*\" matches no module of the model; correct it or drop it");
}

TEST(IgnoreTest, ModulesParametersPatternsAndAliases) {
  v1::Module shared = Mod("s", "Block", {Alias("again", "a.x")});
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "Net",
          {Mod("a", "Block", {Weights("x", "Leaf", 5), Weights("y", "Leaf", 6)}),
           Mod("b", "Block", {Tied("t", "a.y.w", 6), Weights("z", "Leaf", 7)}), shared}));
  const auto ignored = [&](const std::vector<std::string>& fqns) {
    v1::WrapSpec wrap = Named("always");
    for (const std::string& fqn : fqns) wrap.add_ignore(fqn);
    const v1::Plan plan = Planned(model, wrap);
    return std::vector<std::string>(plan.ignored().begin(), plan.ignored().end());
  };
  EXPECT_THAT(ignored({"a"}), ElementsAre("a.x.w", "a.y.w"));
  EXPECT_THAT(ignored({"a.x.w"}), ElementsAre("a.x.w"));
  EXPECT_THAT(ignored({"*.z"}), ElementsAre("b.z.w"));
  EXPECT_THAT(ignored({"b.t"}), ElementsAre("a.y.w"));      // one storage: under both names
  EXPECT_THAT(ignored({"s"}), ElementsAre("a.x.w"));        // the same object
  EXPECT_THAT(ignored({"s.again"}), ElementsAre("a.x.w"));  // and so here
  v1::WrapSpec wrap = Named("always");
  wrap.add_ignore("s");
  const v1::Plan plan = Planned(model, wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("a.y", "a", "b.t", "b.z", "b", ""));
  // AReaL #313: the plan says who reduces them.
  EXPECT_THAT(NotesOf(plan), HasSubstr("1 parameter of 5 elements in no unit as asked"));
}

TEST(IgnoreTest, RefusesTheUnknownAndEverything) {
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {Weights("a", "Leaf", 1)}));
  v1::WrapSpec wrap = Named("always");
  wrap.add_ignore("a");
  EXPECT_EQ(
      std::string(TryPlan(model, wrap).status().message()),
      "wrap.ignore: leaves no parameter of the model; there is nothing to train, ignore less");
  wrap.set_ignore(0, "a.v");
  EXPECT_EQ(std::string(TryPlan(model, wrap).status().message()),
            "wrap.ignore: \"a.v\" names no module and no parameter of the model; give the FQN of "
            "one");
  wrap.set_ignore(0, "");
  EXPECT_EQ(Field(TryPlan(model, wrap).status()), "wrap.ignore");
}

// What is ignored is not looked at: neither is what is below it a unit, nor does it count.
TEST(IgnoreTest, IgnoredModulesAreNoUnitsWhateverIsSaidOfThem) {
  v1::Module frozen = Mod("f", "Block", {Weights("x", "Leaf", 100)});
  AddBuffer(&frozen, "mask", "float32");
  v1::WrapSpec wrap = Size(100);
  wrap.add_ignore("f");
  wrap.add_wrap_patterns("**.x");
  const v1::Plan plan = Planned(
      ModelOfRoot(Mod("", "Net", {frozen, Mod("g", "Block", {Weights("x", "Leaf", 1)})})), wrap);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("g.x", ""));
  EXPECT_THAT(UnitNamed(plan, "").buffers(), IsEmpty());
}

TEST(TiesTest, RejectNamesBoth) {
  const v1::ModelSpec model = ModelOfRoot(Mod(
      "", "Net", {Weights("embed", "Leaf", 8), Mod("mid", "Block"), Tied("head", "embed.w", 8)}));
  v1::WrapSpec wrap = Classes({"Leaf"});
  wrap.set_ties("reject");
  const absl::Status status = TryPlan(model, wrap).status();
  EXPECT_EQ(Field(status), "embed.w");
  EXPECT_EQ(std::string(status.message()),
            "embed.w: is in unit \"embed\", and \"head.w\", which is tied to it, is outside; make "
            "one unit of both, or give wrap.ties lift");
  // A tie that moves nothing is none of its business.
  wrap = Named("none");
  wrap.set_ties("reject");
  EXPECT_THAT(UnitFqns(Planned(model, wrap)), ElementsAre(""));
}

// Without a root unit there may be none that covers all users.
TEST(TiesTest, NoUnitCoversBothWithoutARoot) {
  const v1::ModelSpec model =
      ModelOfRoot(Mod("", "Net", {Weights("embed", "Leaf", 8), Tied("head", "embed.w", 8)}));
  const v1::Plan plan = Planned(model, ByPolicy(Classes({"Leaf"})));
  EXPECT_THAT(UnitFqns(plan), ElementsAre("embed", "head"));
  EXPECT_THAT(plan.orphans(), ElementsAre("embed.w"));
  EXPECT_THAT(NotesOf(plan), HasSubstr("\"embed.w\" is in no unit instead of unit \"embed\""));
}

v1::ModelSpec WithBatchNorm() {
  v1::Module norm = Weights("bn", "BatchNorm2d", 8);
  AddBuffer(&norm, "running_mean", "float32");
  v1::Module own = Weights("own", "MyNorm", 8);
  own.add_base_classes("_BatchNorm");
  return ModelOfRoot(Mod("", "Net", {Mod("b", "Block", {Weights("c", "Conv2d", 50), norm}), own}));
}

TEST(FullPrecisionTest, BatchNormsAreUnitsOutOfMixedPrecision) {
  v1::MixedPrecisionSpec precision;
  precision.set_param_dtype("bf16");
  precision.set_buffer_dtype("bf16");
  const v1::Plan plan = Planned(WithBatchNorm(), Classes({"Block"}), precision);
  EXPECT_THAT(UnitFqns(plan), ElementsAre("b.bn", "b", "own", ""));
  const v1::Unit& norm = UnitNamed(plan, "b.bn");
  EXPECT_EQ(norm.param_dtype(), v1::FLOAT32);
  EXPECT_EQ(norm.reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(norm.input_dtype(), v1::FLOAT32);
  EXPECT_EQ(norm.buffers(0).buffer_dtype(), v1::FLOAT32);
  EXPECT_FALSE(norm.has_overrides());
  EXPECT_EQ(UnitNamed(plan, "b").param_dtype(), v1::BFLOAT16);
  EXPECT_THAT(NotesOf(plan), HasSubstr("2 modules of the classes BatchNorm2d, MyNorm are units of "
                                       "their own and out of mixed precision"));
  // The gate of a size policy stays as it is.
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Size(1000), precision)),
              ElementsAre("b.bn", "own", ""));
}

TEST(FullPrecisionTest, OnlyWithMixedPrecisionAndAPolicy) {
  v1::MixedPrecisionSpec off, precision;
  off.set_param_dtype("fp32");  // pytorch #90584: as the model is no mixed precision
  precision.set_reduce_dtype("bf16");
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Classes({"Block"}))), ElementsAre("b", ""));
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Classes({"Block"}), off)), ElementsAre("b", ""));
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Named("none"), precision)), ElementsAre(""));
  precision.add_ignored_classes("Conv2d");
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Classes({"Block"}), precision)),
              ElementsAre("b.c", "b", ""));
  precision.set_ignored_classes(0, "");
  EXPECT_THAT(UnitFqns(Planned(WithBatchNorm(), Classes({"Block"}), precision)),
              ElementsAre("b", ""));
}

// 50,000 modules; what is quadratic takes long enough to be seen.
TEST(ScaleTest, ManyModulesOfEveryPolicy) {
  std::vector<v1::Module> layers;
  for (int i = 0; i < 5'000; ++i) {
    v1::Module layer = Weights(absl::StrCat(i), "Layer", 8);
    for (int k = 0; k < 9; ++k) *layer.add_children() = Weights(absl::StrCat(k), "Leaf", 2);
    if (i > 0) layer.mutable_children(8)->mutable_parameters(0)->set_tied_to("layers.0.8.w");
    layers.push_back(layer);
  }
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {Mod("layers", "ModuleList", layers)}));
  EXPECT_EQ(Planned(model, Size(26)).units_size(), 5'001);
  const v1::Plan always = Planned(model, Named("always"));
  EXPECT_EQ(always.units_size(), 50'002);
  EXPECT_LT(always.notes_size(), 30);  // the many are folded
  v1::WrapSpec wrap = Named("none");
  wrap.add_wrap_patterns("**.3");
  EXPECT_EQ(Planned(model, wrap).units_size(), 5'002);
}

}  // namespace
}  // namespace tessera
