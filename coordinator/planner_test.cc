#include "coordinator/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/builtin_models.h"
#include "common/errors.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::ModelSpec Model(const std::string& root) {
  const auto spec = ParseModelSpec(
      absl::StrCat(R"({"name":"m","root":{"class_name":"Net",)", root, "}}"), "m.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::ModelSpec();
}

// A parameter "w" of [4]; `more` is e.g. R"(,"tied_to":"a.w")".
std::string Weight(const std::string& more = "", const std::string& dtype = "float32") {
  return absl::StrCat(R"("parameters":[{"name":"w","shape":[4],"dtype":")", dtype, "\"", more,
                      "}]");
}

v1::WrapSpec ByClass(std::vector<std::string> classes) {
  v1::WrapSpec wrap;
  wrap.set_policy("class");
  for (std::string& name : classes) wrap.add_wrap_classes(std::move(name));
  return wrap;
}

v1::Plan Plan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
              const v1::MixedPrecisionSpec& precision = {}) {
  const auto plan = MakePlan(model, wrap, precision);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : v1::Plan();
}

// "UNIT: PARAMETER PARAMETER" for each unit.
std::vector<std::string> Shape(const v1::Plan& plan) {
  std::vector<std::string> lines;
  for (const v1::Unit& unit : plan.units()) {
    lines.push_back(absl::StrCat(unit.fqn(), ":"));
    for (const v1::UnitParameter& parameter : unit.parameters())
      absl::StrAppend(&lines.back(), " ", parameter.fqn());
  }
  return lines;
}

std::vector<std::string> Notes(const v1::Plan& plan) {
  return {plan.notes().begin(), plan.notes().end()};
}

TEST(PlannerTest, CutsGptAtItsBlocks) {
  const v1::Plan plan =
      Plan(GptModelSpec({.layers = 2, .width = 128, .heads = 4, .context = 64, .vocab = 256}),
           ByClass({"Block"}));
  ASSERT_EQ(plan.units_size(), 3);
  EXPECT_EQ(plan.model_name(), "gpt");
  EXPECT_EQ(plan.units(0).fqn(), "h.0");
  EXPECT_EQ(plan.units(0).class_name(), "Block");
  // 2 x 256 norms, 49,536 + 16,512 attention, 66,048 + 65,664 MLP.
  EXPECT_EQ(plan.units(0).numel(), 198'272);
  EXPECT_EQ(plan.units(0).enclosing_unit(), 2);
  EXPECT_EQ(plan.units(1).fqn(), "h.1");
  EXPECT_EQ(plan.units(2).fqn(), "");
  EXPECT_FALSE(plan.units(2).has_enclosing_unit());
  // 32,768 + 8,192 embeddings and the last norm's 256; the tied output embedding is stored once.
  EXPECT_EQ(plan.units(2).numel(), 41'216);
  EXPECT_THAT(Shape(plan)[2], ": wte.weight wpe.weight ln_f.weight ln_f.bias");
  EXPECT_THAT(plan.units(2).parameters(0).tied_fqns(), ElementsAre("lm_head.weight"));
  EXPECT_THAT(plan.units(2).parameters(0).shape(), ElementsAre(256, 128));
  EXPECT_THAT(plan.notes(), IsEmpty());
  for (const v1::Unit& unit : plan.units()) {
    EXPECT_EQ(unit.original_dtype(), v1::FLOAT32);
    EXPECT_EQ(unit.param_dtype(), v1::FLOAT32);
    EXPECT_EQ(unit.reduce_dtype(), v1::FLOAT32);
  }
}

TEST(PlannerTest, NoneLeavesTheRootAlone) {
  v1::WrapSpec wrap;
  wrap.set_policy("none");
  const v1::Plan plan =
      Plan(Model(absl::StrCat(Weight(), R"(,"children":[{"name":"a",)", Weight(), "}]")), wrap);
  EXPECT_THAT(Shape(plan), ElementsAre(": w a.w"));
}

TEST(PlannerTest, PostOrderWithNestedUnitsAndBaseClasses) {
  const v1::ModelSpec model = Model(absl::StrCat(
      Weight(), R"(,"children":[{"name":"o","class_name":"Outer",)", Weight(),
      R"(,"children":[{"name":"i","class_name":"Special","base_classes":["Inner"],)", Weight(),
      R"(},{"name":"p",)", Weight(), R"(}]},{"name":"j","class_name":"Inner",)", Weight(), "}]"));
  const v1::Plan plan = Plan(model, ByClass({"Outer", "Inner"}));
  EXPECT_THAT(Shape(plan), ElementsAre("o.i: o.i.w", "o: o.w o.p.w", "j: j.w", ": w"));
  EXPECT_EQ(plan.units(0).enclosing_unit(), 1);
  EXPECT_EQ(plan.units(1).enclosing_unit(), 3);
  EXPECT_EQ(plan.units(2).enclosing_unit(), 3);
}

// fairscale #437: an outer unit whose children have everything.
TEST(PlannerTest, RootWithNothingLeftIsALegalUnit) {
  const v1::Plan plan = Plan(
      Model(absl::StrCat(R"("children":[{"name":"a","class_name":"A",)", Weight("", "bf16"), "}]")),
      ByClass({"A"}));
  EXPECT_THAT(Shape(plan), ElementsAre("a: a.w", ":"));
  EXPECT_EQ(plan.units(1).numel(), 0);
  EXPECT_EQ(plan.units(1).original_dtype(), v1::BFLOAT16);
  EXPECT_EQ(plan.units(1).param_dtype(), v1::BFLOAT16);
  EXPECT_EQ(plan.units(1).reduce_dtype(), v1::BFLOAT16);
}

// Lightning #21403: a policy that cuts between an embedding and the head that is tied to it.
TEST(PlannerTest, TieAcrossUnitsIsLiftedToTheUnitThatCoversBoth) {
  const v1::Plan plan =
      Plan(Model(absl::StrCat(R"("children":[{"name":"x","class_name":"A","children":[
      {"name":"wte","class_name":"E",)",
                              Weight(), R"(},{"name":"head","class_name":"E",)",
                              Weight(R"(,"tied_to":"x.wte.w")"), "}]}]")),
           ByClass({"A", "E"}));
  EXPECT_THAT(Shape(plan), ElementsAre("x.wte:", "x.head:", "x: x.wte.w", ":"));
  EXPECT_THAT(Notes(plan),
              ElementsAre("\"x.wte.w\" is in unit \"x\" instead of unit \"x.wte\", because "
                          "\"x.head.w\" uses the same storage.",
                          "unit \"x.wte\" has no parameters left and moves nothing.",
                          "unit \"x.head\" has no parameters left and moves nothing."));
}

TEST(PlannerTest, TieWithinAUnitStays) {
  const v1::Plan plan = Plan(
      Model(absl::StrCat(R"("children":[{"name":"x","class_name":"A",)", Weight(),
                         R"(,"children":[{"name":"y",)", Weight(R"(,"tied_to":"x.w")"), "}]}]")),
      ByClass({"A"}));
  EXPECT_THAT(Shape(plan), ElementsAre("x: x.w", ":"));
  EXPECT_THAT(Notes(plan), IsEmpty());
}

// The parent uses what its child's unit holds, when that unit may be sharded.
TEST(PlannerTest, TieOfAParentToItsChildIsLifted) {
  const v1::Plan plan =
      Plan(Model(absl::StrCat(R"("children":[{"name":"x","class_name":"A",)",
                              Weight(R"(,"tied_to":"x.y.w")"),
                              R"(,"children":[{"name":"y","class_name":"B",)", Weight(), "}]}]")),
           ByClass({"A", "B"}));
  EXPECT_THAT(Shape(plan), ElementsAre("x.y:", "x: x.y.w", ":"));
}

TEST(PlannerTest, AliasOfAUnitUsesThatUnit) {
  const v1::Plan plan = Plan(Model(absl::StrCat(R"("children":[{"name":"a","class_name":"A",)",
                                                Weight(), R"(},{"name":"b","same_as":"a"}])")),
                             ByClass({"A"}));
  EXPECT_THAT(Shape(plan), ElementsAre("a: a.w", ":"));
  EXPECT_THAT(plan.units(0).parameters(0).tied_fqns(), ElementsAre("b.w"));
  EXPECT_THAT(Notes(plan), IsEmpty());
}

TEST(PlannerTest, AliasOutsideTheUnitLiftsWhatItsTargetShares) {
  const v1::Plan plan =
      Plan(Model(absl::StrCat(
               R"("children":[{"name":"a","class_name":"A","children":[{"name":"s",)", Weight(),
               R"(},{"name":"t",)", Weight(),
               R"(}]},{"name":"b","class_name":"A","children":[{"name":"s","same_as":"a.s"}]}])")),
           ByClass({"A"}));
  EXPECT_THAT(Shape(plan), ElementsAre("a: a.t.w", "b:", ": a.s.w"));
  EXPECT_EQ(plan.notes(0),
            "\"a.s.w\" is in the root unit instead of unit \"a\", because \"b.s.w\" uses the same "
            "storage.");
}

// Lifting for a tie takes the parameter out of the unit that an alias would have brought along.
TEST(PlannerTest, AliasIsLookedAtAgainAfterALift) {
  const v1::Plan plan = Plan(
      Model(absl::StrCat(
          R"("children":[{"name":"x","class_name":"X","children":[{"name":"a","class_name":"A",)",
          Weight(), R"(},{"name":"u",)", Weight(R"(,"tied_to":"x.a.w")"),
          R"(}]},{"name":"b","same_as":"x.a"}])")),
      ByClass({"A", "X"}));
  EXPECT_THAT(Shape(plan), ElementsAre("x.a:", "x:", ": x.a.w"));
}

TEST(PlannerTest, CarriesInitialValuesAndGradFlags) {
  const v1::Plan plan = Plan(Model(R"("parameters":[{"name":"a","shape":[2],"dtype":"float32"},
      {"name":"b","shape":[2],"dtype":"float32","requires_grad":false,"init":{"kind":"uniform","low":-1}},
      {"name":"c","shape":[2],"dtype":"float32","init":{"kind":"normal"}}])"),
                             ByClass({"Net"}));
  ASSERT_EQ(plan.units_size(), 1);
  const auto& parameters = plan.units(0).parameters();
  EXPECT_EQ(parameters[0].init().kind(), "normal");
  EXPECT_EQ(parameters[0].init().std(), 0.02);
  EXPECT_TRUE(parameters[0].requires_grad());
  EXPECT_EQ(parameters[1].init().kind(), "uniform");
  EXPECT_EQ(parameters[1].init().low(), -1);
  EXPECT_FALSE(parameters[1].requires_grad());
  EXPECT_EQ(parameters[2].init().std(), 0.02);
}

TEST(PlannerTest, MixedPrecisionIsPerUnit) {
  v1::MixedPrecisionSpec precision;
  precision.set_reduce_dtype("fp32");
  const v1::Plan plan =
      Plan(Model(absl::StrCat(Weight(), R"(,"children":[{"name":"a","class_name":"A",)",
                              Weight("", "bf16"), "}]")),
           ByClass({"A"}), precision);
  EXPECT_EQ(plan.units(0).original_dtype(), v1::BFLOAT16);
  EXPECT_EQ(plan.units(0).param_dtype(), v1::BFLOAT16);
  EXPECT_EQ(plan.units(0).reduce_dtype(), v1::FLOAT32);
  EXPECT_EQ(plan.units(1).param_dtype(), v1::FLOAT32);
}

TEST(PlannerTest, FingerprintIgnoresInitialValuesAndSpellings) {
  const v1::WrapSpec wrap = ByClass({"Net"});
  const std::string base = Plan(Model(Weight()), wrap).plan_fingerprint();
  EXPECT_EQ(base.size(), 64u);
  EXPECT_EQ(Plan(Model(Weight(R"(,"init":{"kind":"ones"})", "fp32")), wrap).plan_fingerprint(),
            base);
  EXPECT_NE(Plan(Model(Weight(R"(,"requires_grad":false)")), wrap).plan_fingerprint(), base);
  EXPECT_NE(Plan(Model(Weight("", "bf16")), wrap).plan_fingerprint(), base);
}

TEST(PlannerTest, RefusesDTypesMixedInAUnit) {
  const absl::Status status =
      MakePlan(
          Model(absl::StrCat(Weight(), R"(,"children":[{"name":"a",)", Weight("", "bf16"), "}]")),
          ByClass({"Net"}), {})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Field(status), "a.w");
  EXPECT_EQ(std::string(status.message()),
            "a.w: is bfloat16, and \"w\", which the root unit holds too, is float32; give them one "
            "dtype, wrap them apart or give wrap.mixed_dtypes split");
}

TEST(PlannerTest, RefusesPoliciesThatDoNotFit) {
  const v1::ModelSpec model = Model(Weight());
  v1::WrapSpec unknown, root = ByClass({"Net"}), ties = ByClass({"Net"}), mixed = ByClass({"Net"});
  unknown.set_policy("best");
  root.set_root_unit("never");
  ties.set_ties("break");
  mixed.set_mixed_dtypes("cast");
  const std::vector<std::tuple<v1::WrapSpec, std::string, std::string>> cases = {
      {ByClass({"Net", "Blok", "Layer"}), "wrap.wrap_classes",
       "no module has the class \"Blok\" or \"Layer\"; the model's classes: Net"},
      {ByClass({}), "wrap.wrap_classes", "is empty"},
      {ByClass({""}), "wrap.wrap_classes", "drop it"},
      {unknown, "wrap.policy", "\"best\" is unknown; use size or class or always"},
      {v1::WrapSpec(), "wrap.policy", "\"\" is unknown"},
      {root, "wrap.root_unit", "\"never\" is unknown; use always or by_policy"},
      {ties, "wrap.ties", "\"break\" is unknown; use lift or reject"},
      {mixed, "wrap.mixed_dtypes", "\"cast\" is unknown; use refuse or split"},
  };
  for (const auto& [wrap, field, because] : cases) {
    const absl::Status status = MakePlan(model, wrap, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Field(status), field);
    EXPECT_THAT(std::string(status.message()), HasSubstr(because));
  }
}

TEST(PlannerTest, RefusesWhatIsNoModelOrDType) {
  EXPECT_EQ(MakePlan({}, ByClass({"Net"}), {}).status().code(), absl::StatusCode::kInvalidArgument);
  v1::MixedPrecisionSpec precision;
  precision.set_param_dtype("int8");
  EXPECT_EQ(Field(MakePlan(Model(Weight()), ByClass({"Net"}), precision).status()),
            "mixed_precision.param_dtype");
}

}  // namespace
}  // namespace tessera
