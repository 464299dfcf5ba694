#include "coordinator/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/errors.h"
#include "common/job_spec.h"
#include "coordinator/plan_test_util.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::ExplainModuleResponse Explain(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                  const std::string& fqn,
                                  const v1::MixedPrecisionSpec& precision = {}) {
  const auto resolved = ResolveJobSpec(JobOf(model, wrap, precision));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  const auto response = ExplainModule(*resolved, fqn);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : v1::ExplainModuleResponse();
}

// FairScale's F8: a linear layer and an attention, threshold 40.
v1::ModelSpec WithAttention() { return ModelOfRoot(Seq("", {Lin("0", 10, 10), Mha("1", 100)})); }

TEST(ExplainTest, SizeSaysEveryNumberInTheOrderAsked) {
  const auto root = Explain(WithAttention(), ByPolicy(Size(40)), "");
  EXPECT_TRUE(root.is_unit());
  EXPECT_EQ(root.class_name(), "Sequential");
  EXPECT_THAT(
      root.reasons(),
      ElementsAre(
          "It holds 40510 elements in all, at least wrap.min_params 40, so the policy looks below "
          "it and at it.",
          "The units below it report 110 elements (\"0\": 110), so 40400 of 40510 are left for it.",
          "The 40400 elements left for it are at least wrap.min_params 40, so it is a unit.",
          "The root unit has 40400 elements, float32 in the model, gathered in float32 and reduced "
          "in float32."));
}

TEST(ExplainTest, ForceLeafItselfAndBelow) {
  const auto leaf = Explain(WithAttention(), Size(40), "1");
  EXPECT_FALSE(leaf.is_unit());
  EXPECT_EQ(leaf.unit_fqn(), "");
  EXPECT_THAT(leaf.reasons(),
              ElementsAre("Every module around it lets the policy through.",
                          "Its class MultiheadAttention is in wrap.force_leaf_classes, so neither "
                          "it nor anything below it is a unit.",
                          "Its parameters are in the root unit, the nearest around it."));
  const auto below = Explain(WithAttention(), Size(40), "1.out_proj");
  EXPECT_THAT(below.reasons(0),
              "\"1\", which encloses it: its class MultiheadAttention is in "
              "wrap.force_leaf_classes, so neither it nor anything below it is a unit.");
  EXPECT_EQ(below.reasons_size(), 2);
}

TEST(ExplainTest, GateExclusionAndTooFew) {
  const v1::ModelSpec model = ModelOfRoot(
      Mod("", "Net", {Mod("l", "ModuleList", {Lin("0", 5, 5), Lin("1", 5, 5)}), Lin("x", 2, 2)}));
  EXPECT_THAT(Explain(model, Size(40), "l.0").reasons(),
              Contains("It holds 30 elements in all, fewer than wrap.min_params 40, so neither it "
                       "nor anything below it is a unit."));
  EXPECT_THAT(Explain(model, Size(40), "l").reasons(),
              AllOf(Contains("No unit below it reports anything, so all 60 elements are left for "
                             "it."),
                    Contains("Its class ModuleList is in wrap.exclude_classes, so it is never a "
                             "unit itself.")));
  const auto root = Explain(model, Size(30), "");
  EXPECT_THAT(root.reasons(),
              AllOf(Contains("The 6 elements left for it are fewer than wrap.min_params 30, so it "
                             "is none."),
                    Contains("It is the root, which is a unit unless wrap.root_unit is "
                             "by_policy.")));
  EXPECT_TRUE(root.is_unit());
  const auto orphan = Explain(model, ByPolicy(Size(60)), "x");
  EXPECT_THAT(orphan.reasons(), Contains("It holds 6 elements in all, fewer than wrap.min_params "
                                         "60, so neither it nor anything below it is a unit."));
  v1::WrapSpec skip = ByPolicy(Size(60));
  skip.set_skip_root_check(true);
  skip.add_exclude_classes("");
  EXPECT_THAT(Explain(model, skip, "").reasons(),
              Contains("It is the root, and wrap.skip_root_check makes it a unit with only 6 "
                       "elements left for it."));
}

TEST(ExplainTest, OrphansAndIgnored) {
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {Lin("a", 2, 2), Lin("b", 2, 2)}));
  EXPECT_THAT(Explain(model, ByPolicy(Named("none")), "a").reasons(),
              AllOf(Contains("The root, which encloses it: wrap.policy none looks at no module."),
                    Contains("No module around it is a unit either, so its parameters are "
                             "orphans.")));
  v1::WrapSpec wrap = Named("always");
  wrap.add_ignore("a");
  EXPECT_THAT(Explain(model, wrap, "a").reasons(),
              ElementsAre("wrap.ignore names it, a module around it or one that is the same "
                          "object, so it is in no unit."));
}

TEST(ExplainTest, ClassesAnnotationsPatternsAndUnions) {
  v1::Module tagged = Lin("t", 2, 2);
  tagged.set_wrap(false);
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {tagged, Lin("u", 2, 2)}));
  EXPECT_THAT(Explain(model, Classes({"Linear"}), "t").reasons(),
              Contains("Its class Linear is in wrap.wrap_classes, so it is a unit."));
  EXPECT_THAT(
      Explain(model, Classes({"Net"}), "t").reasons(),
      Contains("Neither its class nor a base class is in wrap.wrap_classes, so it is none."));
  v1::WrapSpec annotated = Named("annotated");
  annotated.add_wrap_patterns("*");
  EXPECT_THAT(Explain(model, annotated, "t").reasons(),
              AllOf(Contains("wrap.policy annotated, and the module has wrap false, so it is "
                             "none."),
                    Contains("\"*\" in wrap.wrap_patterns matches it, so it is a unit.")));
  v1::WrapSpec any;
  *any.add_any_of() = Size(1000);
  *any.add_any_of() = Classes({"Linear"});
  EXPECT_THAT(Explain(model, any, "u").reasons(),
              AllOf(Contains(HasSubstr("fewer than wrap.any_of[0].min_params 1000")),
                    Contains("wrap.any_of[1].policy class looks at every module."),
                    Contains("Its class Linear is in wrap.any_of[1].wrap_classes, so it is a "
                             "unit.")));
}

TEST(ExplainTest, TiesAliasesAndNegativeRemainders) {
  v1::Module head = Mod("head", "Linear");
  AddWeight(&head, "w", {8})->set_tied_to("embed.w");
  v1::Module embed = Mod("embed", "Embedding");
  AddWeight(&embed, "w", {8});
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {embed, head, Alias("again", "embed")}));
  const v1::WrapSpec wrap = ByPolicy(Size(8));
  EXPECT_THAT(
      Explain(model, wrap, "embed").reasons(),
      Contains("\"embed.w\" is in no unit instead of unit \"embed\", because \"head.w\" uses "
               "the same storage."));
  EXPECT_THAT(Explain(model, wrap, "").reasons(),
              Contains("The units below it report 16 elements (\"embed\": 8, \"head\": 8), so -8 "
                       "of 8 are left for it: fewer than none, since each reports what is tied "
                       "between them."));
  const auto again = Explain(model, wrap, "again");
  EXPECT_EQ(again.fqn(), "again");
  EXPECT_EQ(again.class_name(), "Embedding");
  EXPECT_THAT(again.reasons(0),
              "It is the same object as \"embed\", and what is decided there holds here.");
  EXPECT_THAT(
      Explain(model, Size(8), "").reasons(),
      Contains("\"embed.w\" is in the root unit instead of unit \"embed\", because \"head.w\" "
               "uses the same storage."));
}

TEST(ExplainTest, SettingsAndFullPrecision) {
  v1::Module norm = Lin("bn", 2, 2);
  norm.set_class_name("BatchNorm1d");
  v1::Module block = Lin("b", 2, 2);
  block.mutable_wrap_config()->set_reduce_dtype("float32");
  const v1::ModelSpec model = ModelOfRoot(Mod("", "Net", {block, norm}));
  v1::WrapSpec wrap = Named("annotated");
  v1::WrapOverride* call = wrap.add_overrides();
  call->set_fqn("b");
  call->mutable_config()->set_param_dtype("fp16");
  v1::MixedPrecisionSpec precision;
  precision.set_param_dtype("bf16");
  EXPECT_THAT(Explain(model, wrap, "b", precision).reasons(),
              AllOf(Contains("Its wrap_config sets reduce_dtype: \"float32\"."),
                    Contains("wrap.overrides[0] (\"b\") sets param_dtype: \"float16\"."),
                    Contains("Unit \"b\" has 6 elements, float32 in the model, gathered in float16 "
                             "and reduced in float32.")));
  EXPECT_THAT(Explain(model, wrap, "bn", precision).reasons(),
              Contains(HasSubstr("mixed_precision.ignored_classes, so it is a unit of its own")));
}

TEST(ExplainTest, AgreesWithThePlanEverywhere) {
  const v1::ModelSpec model =
      ModelOfRoot(Seq("", {Lin("0", 10, 10), Mha("1", 10),
                           Mod("2", "ModuleList", {Lin("0", 9, 9), Mha("1", 20)})}));
  for (const v1::WrapSpec& wrap :
       {Size(90), ByPolicy(Size(440)), Named("always"), Classes({"Linear"})}) {
    const v1::Plan plan = Planned(model, wrap);
    for (const char* fqn : {"", "0", "1", "1.out_proj", "2", "2.0", "2.1", "2.1.out_proj"}) {
      const auto why = Explain(model, wrap, fqn);
      EXPECT_EQ(why.is_unit(), testing::Value(UnitFqns(plan), Contains(fqn))) << fqn;
      EXPECT_GE(why.reasons_size(), 2);
      for (const std::string& reason : why.reasons()) {
        EXPECT_EQ(reason.back(), '.');
        EXPECT_THAT(reason, Not(HasSubstr("\n")));
      }
    }
  }
}

TEST(ExplainTest, RefusesWhatIsNoModule) {
  const auto resolved = ResolveJobSpec(JobOf(WithAttention(), Size(40)));
  const absl::Status parameter = ExplainModule(*resolved, "0.weight").status();
  EXPECT_EQ(Field(parameter), "fqn");
  EXPECT_THAT(std::string(parameter.message()), HasSubstr("give its module \"0\""));
  EXPECT_EQ(std::string(ExplainModule(*resolved, "2").status().message()),
            "fqn: \"2\" is no module of the model; its root has \"0\", \"1\"");
  const auto bad = ResolveJobSpec(JobOf(WithAttention(), Classes({"Blok"})));
  EXPECT_EQ(Field(ExplainModule(*bad, "").status()), "wrap.wrap_classes");
}

}  // namespace
}  // namespace tessera
