#include "coordinator/draft.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "coordinator/draft_module.h"
#include "coordinator/job_planner.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Message>
Message FromJson(const std::string& json) {
  Message message;
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message);
  EXPECT_TRUE(status.ok()) << status.ToString() << json;
  return message;
}

v1::JobSpec Job(const std::string& more = "") {
  const auto resolved = ResolveJobSpec(FromJson<v1::JobSpec>(
      absl::StrCat(R"({"name": "built", "workload": "attached", "global_batch": 4,
                       "model": {"built": true})",
                   more, "}")));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(v1::JobSpec());
}

v1::ModuleAnnouncement Announcement(const std::string& fqn, const std::string& module,
                                    const std::string& more = "") {
  return FromJson<v1::ModuleAnnouncement>(
      absl::StrCat(R"({"fqn": ")", fqn, R"(", "module": )", module, more, "}"));
}

// A weight of 10 x 10.
constexpr char kLinear[] = R"({"class_name": "Linear", "parameters": [
    {"name": "weight", "shape": [10, 10], "dtype": "float32"}]})";

// A root that holds the sealed modules a and b, and a bias of 7.
v1::ModuleAnnouncement Root() {
  return Announcement("", R"({"class_name": "Net",
      "parameters": [{"name": "bias", "shape": [7], "dtype": "float32"}],
      "children": [{"name": "a"}, {"name": "b"}]})",
                      R"(, "sealed": ["a", "b"])");
}

std::vector<std::string> Fqns(const v1::AnnounceModuleResponse& answer) {
  std::vector<std::string> fqns;
  for (const v1::Unit& unit : answer.units()) fqns.push_back(unit.fqn());
  return fqns;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(DraftTest, AModuleThatIsWrappedIsAUnitCutForTheJobsWorldSize) {
  Draft draft(Job(), 2);
  const auto answer = draft.Announce(0, Announcement("h.0", R"({"class_name": "Block",
      "parameters": [{"name": "bias", "shape": [3], "dtype": "float32"}],
      "children": [{"name": "fc", "class_name": "Linear", "parameters": [
          {"name": "weight", "shape": [10, 10], "dtype": "float32"}]}]})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->units_size(), 1);
  EXPECT_EQ(answer->units(0).fqn(), "h.0");
  EXPECT_EQ(answer->units(0).numel(), 103);
  EXPECT_EQ(answer->units(0).parameters(0).fqn(), "h.0.bias");
  EXPECT_EQ(answer->units(0).parameters(1).fqn(), "h.0.fc.weight");
  // 16 bytes are 4 elements, 128 bytes 32: 103 end at 104, and half of that rounds up to 64.
  EXPECT_EQ(answer->layouts(0).parameters(1).fqn(), "h.0.fc.weight");
  EXPECT_EQ(answer->layouts(0).parameters(0).offset(), 0);
  EXPECT_EQ(answer->layouts(0).parameters(1).offset(), 4);
  EXPECT_EQ(answer->layouts(0).shard_numel(), 64);
  EXPECT_EQ(answer->layouts(0).padded_numel(), 128);
}

TEST(DraftTest, TheRootCompletesTheModelOnceEveryRankHasWrappedIt) {
  Draft draft(Job(), 2);
  for (const int rank : {0, 1}) {
    EXPECT_FALSE(draft.complete());
    EXPECT_EQ(absl::StatusCode::kFailedPrecondition, draft.Seal().status().code());
    for (const char* fqn : {"a", "b"})
      ASSERT_TRUE(draft.Announce(rank, Announcement(fqn, kLinear)).ok());
    const auto root = draft.Announce(rank, Root());
    ASSERT_TRUE(root.ok()) << root.status();
    EXPECT_THAT(Fqns(*root), ElementsAre(""));
    EXPECT_EQ(root->units(0).numel(), 7);
    EXPECT_TRUE(draft.finished(rank));
  }
  ASSERT_TRUE(draft.complete());
  const auto sealed = draft.Seal();
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  const v1::Module& root = sealed->model().spec().root();
  ASSERT_EQ(root.children_size(), 2);
  EXPECT_EQ(root.children(1).name(), "b");
  EXPECT_EQ(root.children(1).parameters(0).name(), "weight");
  const auto planned = PlanJob(*sealed, 2);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_EQ(planned->plan.units_size(), 3);
  EXPECT_EQ(planned->plan.units(0).fqn(), "a");
  EXPECT_EQ(planned->plan.units(1).fqn(), "b");
  EXPECT_EQ(planned->plan.units(2).fqn(), "");
  const absl::Status checked = draft.CheckSealed(planned->plan, planned->layout);
  EXPECT_TRUE(checked.ok()) << checked;
}

TEST(DraftTest, APlanThatIsCutOtherwiseThanWhatWasSealedIsFound) {
  Draft draft(Job(), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("", kLinear)).ok());
  ASSERT_TRUE(draft.Announce(1, Announcement("", kLinear)).ok());
  const auto sealed = draft.Seal();
  ASSERT_TRUE(sealed.ok());
  const auto planned = PlanJob(*sealed, 4);
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(draft.CheckSealed(planned->plan, planned->layout).code(), absl::StatusCode::kInternal);
}

TEST(DraftTest, ARepeatedAnnouncementGetsTheSameAnswerAndCountsOnce) {
  Draft draft(Job(), 1);
  const auto first = draft.Announce(0, Announcement("a", kLinear));
  const auto again = draft.Announce(0, Announcement("a", kLinear));
  ASSERT_TRUE(first.ok() && again.ok()) << again.status();
  EXPECT_EQ(first->SerializeAsString(), again->SerializeAsString());
  ASSERT_TRUE(draft.Announce(0, Announcement("b", kLinear)).ok());
  const auto root = draft.Announce(0, Root());
  const auto root_again = draft.Announce(0, Root());
  ASSERT_TRUE(root.ok() && root_again.ok()) << root_again.status();
  EXPECT_EQ(root->SerializeAsString(), root_again->SerializeAsString());
  ASSERT_TRUE(draft.Seal().ok());
  EXPECT_EQ(draft.Seal()->model().spec().root().children_size(), 2);
}

TEST(DraftTest, WhatIsRefusedLeavesNothingBehind) {
  Draft draft(Job(), 1);
  const auto refused = draft.Announce(0, Announcement("a", R"({"parameters": [
      {"name": "weight", "shape": [0], "dtype": "float32"}]})"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  const auto mended = draft.Announce(0, Announcement("a", kLinear));
  ASSERT_TRUE(mended.ok()) << mended.status();
  EXPECT_THAT(Fqns(*mended), ElementsAre("a"));
}

TEST(DraftTest, RanksThatDisagreeAreNamedWithTheFqn) {
  Draft draft(Job(), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("a", kLinear)).ok());
  const auto other = draft.Announce(1, Announcement("a", R"({"class_name": "Linear",
      "parameters": [{"name": "weight", "shape": [10, 12], "dtype": "float32"}]})"));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(other.status()), "RANKS_DISAGREE");
  EXPECT_THAT(Message(other.status()),
              HasSubstr("rank 1 announces \"a\" otherwise than rank 0: parameter \"a.weight\" is "
                        "float32 [10, 10] there and float32 [10, 12] here"));
  // It may still agree.
  EXPECT_TRUE(draft.Announce(1, Announcement("a", kLinear)).ok());
}

TEST(DraftTest, ARankThatDidNotWrapAModuleIsNamed) {
  Draft draft(Job(), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("a", kLinear)).ok());
  ASSERT_TRUE(draft.Announce(0, Announcement("b", kLinear)).ok());
  ASSERT_TRUE(draft.Announce(0, Root()).ok());
  ASSERT_TRUE(draft.Announce(1, Announcement("a", kLinear)).ok());
  v1::ModuleAnnouncement root = Root();
  *root.mutable_module()->mutable_children(1) = FromJson<v1::Module>(kLinear);
  root.mutable_module()->mutable_children(1)->set_name("b");
  root.mutable_sealed()->RemoveLast();
  const auto refused = draft.Announce(1, root);
  EXPECT_EQ(Reason(refused.status()), "RANKS_DISAGREE");
  EXPECT_THAT(Message(refused.status()),
              HasSubstr("rank 1 announces the root otherwise than rank 0: \"b\" is wrapped there "
                        "only"));
}

TEST(DraftTest, ARankThatWrapsMoreThanAnotherIsNamed) {
  Draft draft(Job(), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("", kLinear)).ok());
  const auto more = draft.Announce(1, Announcement("extra", kLinear));
  EXPECT_EQ(Reason(more.status()), "RANKS_DISAGREE");
  EXPECT_THAT(Message(more.status()),
              HasSubstr("rank 1 announces \"extra\", which rank 0 had not"));
}

TEST(DraftTest, OtherSettingsAreADisagreementToo) {
  Draft draft(Job(), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("a", kLinear)).ok());
  const auto other = draft.Announce(
      1, Announcement("a", kLinear, R"(, "overrides": {"param_dtype": "bfloat16"})"));
  EXPECT_EQ(Reason(other.status()), "RANKS_DISAGREE");
}

TEST(DraftTest, NothingIsAnnouncedAfterTheRoot) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("", kLinear)).ok());
  const auto late = draft.Announce(0, Announcement("late", kLinear));
  EXPECT_EQ(late.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(late.status()), "PLAN_SEALED");
  EXPECT_THAT(Message(late.status()), HasSubstr("\"late\""));
  const absl::Status dtype = draft.ChangeDType(0, 1, "bfloat16");
  EXPECT_EQ(Reason(dtype), "PLAN_SEALED");
}

// pytorch #83052 and Lightning #21403: tied parameters that are wrapped apart.
TEST(DraftTest, ATieToASealedUnitNamesBothParameters) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("embed", kLinear)).ok());
  const char tied[] = R"({"parameters": [{"name": "weight", "shape": [10, 10], "dtype": "float32",
                                          "tied_to": "embed.weight"}]})";
  const auto refused = draft.Announce(0, Announcement("head", tied));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused.status()),
              AllOf(HasSubstr("head.weight"), HasSubstr("embed.weight"), HasSubstr("sealed")));
}

TEST(DraftTest, ATieToAModuleElsewhereNamesBothParameters) {
  Draft draft(Job(), 1);
  const auto refused = draft.Announce(
      0, Announcement("head", R"({"parameters": [{"name": "weight", "shape": [10, 10],
                                  "dtype": "float32", "tied_to": "embed.weight"}]})"));
  EXPECT_THAT(Message(refused.status()), AllOf(HasSubstr("head.weight"), HasSubstr("embed.weight"),
                                               HasSubstr("wrap a module that holds both")));
}

TEST(DraftTest, ATieInsideAModuleIsStoredOnce) {
  Draft draft(Job(), 1);
  const auto answer = draft.Announce(0, Announcement("h.0", R"({"children": [
      {"name": "in", "parameters": [{"name": "w", "shape": [4], "dtype": "float32"}]},
      {"name": "out", "parameters": [{"name": "w", "shape": [4], "dtype": "float32",
                                      "tied_to": "h.0.in.w"}]}]})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->units(0).parameters_size(), 1);
  EXPECT_EQ(answer->units(0).parameters(0).fqn(), "h.0.in.w");
  EXPECT_THAT(answer->units(0).parameters(0).tied_fqns(), ElementsAre("h.0.out.w"));
  // And what is tied to the tie is sealed as well.
  const auto later = draft.Announce(0, Announcement("x", R"({"parameters": [
      {"name": "w", "shape": [4], "dtype": "float32", "tied_to": "h.0.out.w"}]})"));
  EXPECT_THAT(Message(later.status()), AllOf(HasSubstr("h.0.out.w"), HasSubstr("sealed")));
  // The whole model takes the tie as it is.
  ASSERT_TRUE(draft
                  .Announce(0, Announcement("", R"({"children": [{"name": "h", "children": [
                                                    {"name": "0"}]}]})",
                                            R"(, "sealed": ["h.0"])"))
                  .ok());
  const auto planned = PlanJob(*draft.Seal(), 1);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(draft.CheckSealed(planned->plan, planned->layout).ok());
}

TEST(DraftTest, AModuleIsWrappedOnceAndWhatIsInItNotAtAll) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("h.0", kLinear)).ok());
  for (const char* fqn : {"h.0", "h.0.mlp"}) {
    const auto again = draft.Announce(
        0, Announcement(
               fqn, R"({"parameters": [{"name": "other", "shape": [1], "dtype": "float32"}]})"));
    EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(again.status()), HasSubstr("\"h.0\""));
  }
  // h.01 is a neighbour.
  EXPECT_TRUE(draft.Announce(0, Announcement("h.01", kLinear)).ok());
}

TEST(DraftTest, ARootWithoutAWrappedModuleNamesIt) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("a", kLinear)).ok());
  const auto root = draft.Announce(0, Announcement("", kLinear));
  EXPECT_THAT(Message(root.status()), AllOf(HasSubstr("a: "), HasSubstr("is sealed")));
  const auto stub = draft.Announce(
      0, Announcement("b", R"({"children": [{"name": "c"}]})", R"(, "sealed": ["b.c"])"));
  EXPECT_THAT(Message(stub.status()), AllOf(HasSubstr("b.c"), HasSubstr("was not sealed")));
}

TEST(DraftTest, SettingsOfTheCallWinOverTheModulesAndThoseOverTheScopes) {
  Draft draft(Job(), 1);
  const auto answer = draft.Announce(0, Announcement("", R"({"class_name": "Linear",
      "parameters": [{"name": "weight", "shape": [10], "dtype": "float32"}],
      "wrap_config": {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}})",
                                                     R"(,
      "defaults": {"param_dtype": "float16", "reduce_dtype": "float16", "buffer_dtype": "float16"},
      "overrides": {"reduce_dtype": "float32"})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  const auto sealed = draft.Seal();
  ASSERT_TRUE(sealed.ok());
  const v1::WrapConfig& config = sealed->model().spec().root().wrap_config();
  EXPECT_EQ(config.param_dtype(), "bfloat16");
  EXPECT_EQ(config.reduce_dtype(), "float32");
  EXPECT_EQ(config.buffer_dtype(), "float16");
}

TEST(DraftTest, APolicyWrapsBelowAModuleAndLeavesIt) {
  Draft draft(Job(), 1);
  const char layers[] = R"({"class_name": "ModuleList", "children": [
      {"name": "0", "class_name": "Block", "parameters": [
          {"name": "w", "shape": [4], "dtype": "float32"}]},
      {"name": "1", "class_name": "Block", "parameters": [
          {"name": "w", "shape": [4], "dtype": "float32"}]}],
      "parameters": [{"name": "scale", "shape": [2], "dtype": "float32"}]})";
  const auto answer =
      draft.Announce(0, Announcement("h", layers,
                                     R"(, "policy": {"policy": "class", "wrap_classes": ["Block"]},
                          "overrides": {"buffer_dtype": "float16"})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(Fqns(*answer), ElementsAre("h.0", "h.1"));
  EXPECT_EQ(answer->units(1).parameters(0).fqn(), "h.1.w");
  // What is left is the root's.
  const auto root = draft.Announce(0, Announcement("", R"({"children": [
      {"name": "h", "class_name": "ModuleList", "children": [{"name": "0"}, {"name": "1"}],
       "parameters": [{"name": "scale", "shape": [2], "dtype": "float32"}]}]})",
                                                   R"(, "sealed": ["h.0", "h.1"])"));
  ASSERT_TRUE(root.ok()) << root.status();
  ASSERT_EQ(root->units_size(), 1);
  EXPECT_EQ(root->units(0).parameters(0).fqn(), "h.scale");
  const v1::Module built = draft.Seal()->model().spec().root().children(0);
  // The settings of the call are every unit's that it made, and no other module's.
  EXPECT_EQ(built.children(0).wrap_config().buffer_dtype(), "float16");
  EXPECT_EQ(built.children(1).wrap_config().buffer_dtype(), "float16");
  EXPECT_FALSE(built.has_wrap_config());
}

TEST(DraftTest, APolicyThatDoesNotFitNamesItsField) {
  Draft draft(Job(), 1);
  const auto classes = draft.Announce(
      0,
      Announcement("h", kLinear, R"(, "policy": {"policy": "class", "wrap_classes": ["Blok"]})"));
  EXPECT_EQ(Field(classes.status()), "wrap.wrap_classes") << classes.status();
  const auto ignore = draft.Announce(
      0, Announcement("h", kLinear, R"(, "policy": {"policy": "none", "ignore": ["x"]})"));
  EXPECT_EQ(Field(ignore.status()), "policy.ignore") << ignore.status();
}

// FairScale's test_auto_wrap (F4) and test_auto_wrap_skip_root_checks (F5): 30 elements a layer, 60
// at least for a unit.
constexpr char kSequential[] = R"({"class_name": "Sequential", "children": [
    {"name": "0", "class_name": "Linear", "parameters": [
        {"name": "w", "shape": [30], "dtype": "float32"}]},
    {"name": "1", "class_name": "Sequential", "children": [
        {"name": "0", "class_name": "Linear", "parameters": [
            {"name": "w", "shape": [30], "dtype": "float32"}]},
        {"name": "1", "class_name": "Linear", "parameters": [
            {"name": "w", "shape": [30], "dtype": "float32"}]}]}]})";

TEST(DraftTest, TheSizePolicyIsFairScales) {
  Draft draft(Job(R"(, "wrap": {"root_unit": "by_policy"})"), 1);
  const auto f4 = draft.Announce(
      0, Announcement("f4", kSequential, R"(, "policy": {"policy": "size", "min_params": 60})"));
  ASSERT_TRUE(f4.ok()) << f4.status();
  EXPECT_THAT(Fqns(*f4), ElementsAre("f4.1"));
  const auto f5 = draft.Announce(
      0, Announcement("f5", kSequential, R"(, "policy": {"policy": "size", "min_params": 60,
                                                        "skip_root_check": true})"));
  ASSERT_TRUE(f5.ok()) << f5.status();
  EXPECT_THAT(Fqns(*f5), ElementsAre("f5.1", "f5"));
  const auto by_default =
      draft.Announce(0, Announcement("small", kSequential, R"(, "policy": {"policy": "size"})"));
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_THAT(Fqns(*by_default), ElementsAre());
}

// fairscale #649, which asserted on a tree that is partly wrapped.
TEST(DraftTest, APolicyDoesNotCountWhatIsSealed) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("m.fc", kLinear)).ok());
  const auto left = draft.Announce(0, Announcement("m", R"({"class_name": "Block",
      "parameters": [{"name": "w", "shape": [59], "dtype": "float32"}],
      "children": [{"name": "fc"}]})",
                                                   R"(, "sealed": ["m.fc"],
      "policy": {"policy": "size", "min_params": 60})"));
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_THAT(Fqns(*left), ElementsAre());
  const auto wrapped = draft.Announce(0, Announcement("m", R"({"class_name": "Block",
      "parameters": [{"name": "w", "shape": [59], "dtype": "float32"}],
      "children": [{"name": "fc"}]})",
                                                      R"(, "sealed": ["m.fc"],
      "policy": {"policy": "size", "min_params": 59})"));
  ASSERT_TRUE(wrapped.ok()) << wrapped.status();
  EXPECT_THAT(Fqns(*wrapped), ElementsAre("m"));
}

// FairScale's auto_wrap_bn, and FSDP's classes that mixed precision ignores.
TEST(DraftTest, BatchNormsOfAPolicyKeepFullPrecision) {
  Draft draft(Job(R"(, "mixed_precision": {"param_dtype": "bfloat16"})"), 1);
  const char block[] = R"({"class_name": "Block", "children": [
      {"name": "conv", "class_name": "Conv", "parameters": [
          {"name": "w", "shape": [8], "dtype": "float32"}]},
      {"name": "bn", "class_name": "BatchNorm2d", "parameters": [
          {"name": "w", "shape": [4], "dtype": "float32"}]}]})";
  const auto answer = draft.Announce(0, Announcement("", block, R"(, "policy": {"policy": "always"},
                                     "defaults": {"param_dtype": "float16"},
                                     "overrides": {"reduce_dtype": "float16"})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_THAT(Fqns(*answer), ElementsAre("conv", "bn"));
  EXPECT_EQ(answer->units(0).param_dtype(), v1::FLOAT16);
  EXPECT_EQ(answer->units(0).reduce_dtype(), v1::FLOAT16);
  EXPECT_EQ(answer->units(1).param_dtype(), v1::FLOAT32);
  EXPECT_EQ(answer->units(1).reduce_dtype(), v1::FLOAT32);
  const auto planned = PlanJob(*draft.Seal(), 1);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(draft.CheckSealed(planned->plan, planned->layout).ok());
}

TEST(DraftTest, SettingsOfAUnitAreThoseOfItsPlan) {
  Draft draft(Job(), 2);
  const auto answer =
      draft.Announce(0, Announcement("a", kLinear, R"(, "overrides": {"param_dtype": "bf16"})"));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->units(0).param_dtype(), v1::BFLOAT16);
  // 128 bytes are 64 elements of bfloat16: half of 100 rounds up to 64.
  EXPECT_EQ(answer->layouts(0).shard_numel(), 64);
  const auto wrong =
      draft.Announce(0, Announcement("b", kLinear, R"(, "defaults": {"param_dtype": "f33"})"));
  EXPECT_EQ(Field(wrong.status()), "defaults.param_dtype") << wrong.status();
}

TEST(DraftTest, AUnitOfSeveralDTypesIsSplitWhereTheJobSaysSo) {
  Draft draft(Job(R"(, "wrap": {"mixed_dtypes": "split"})"), 1);
  const char mixed[] = R"({"parameters": [
      {"name": "a", "shape": [4], "dtype": "float32"},
      {"name": "b", "shape": [4], "dtype": "bfloat16"}]})";
  const auto answer = draft.Announce(0, Announcement("m", mixed));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(Fqns(*answer), ElementsAre("m:bfloat16", "m"));
  EXPECT_EQ(answer->units(0).parameters(0).fqn(), "m.b");
  // One dtype for both would be one unit.
  EXPECT_EQ(Reason(draft.ChangeDType(0, 1, "float32")), "UNIT_SEALED");
  ASSERT_TRUE(
      draft
          .Announce(0, Announcement("", R"({"children": [{"name": "m"}]})", R"(, "sealed": ["m"])"))
          .ok());
  const auto planned = PlanJob(*draft.Seal(), 1);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(draft.CheckSealed(planned->plan, planned->layout).ok());
}

// fairscale #437: a module all of whose parameters are in wrapped children.
TEST(DraftTest, AUnitWithoutParametersIsLegal) {
  Draft draft(Job(), 1);
  ASSERT_TRUE(draft.Announce(0, Announcement("a.b", kLinear)).ok());
  const auto outer = draft.Announce(
      0, Announcement("a", R"({"children": [{"name": "b"}]})", R"(, "sealed": ["a.b"])"));
  ASSERT_TRUE(outer.ok()) << outer.status();
  EXPECT_THAT(Fqns(*outer), ElementsAre());
  EXPECT_THAT(outer->empty_units(), ElementsAre("a"));
  ASSERT_TRUE(
      draft
          .Announce(0, Announcement("", R"({"children": [{"name": "a"}]})", R"(, "sealed": ["a"])"))
          .ok());
  const auto planned = PlanJob(*draft.Seal(), 1);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->plan.units_size(), 3);
  EXPECT_TRUE(draft.CheckSealed(planned->plan, planned->layout).ok());
}

// pytorch #91192's table, for a model that was bfloat16 and becomes float32.
TEST(DraftTest, AChangeOfDTypeResolvesWhatIsSealedAgain) {
  const struct {
    const char* given;
    v1::DType param, reduce;
  } rows[] = {
      {"", v1::FLOAT32, v1::FLOAT32},
      {R"("param_dtype": "float16")", v1::FLOAT16, v1::FLOAT16},
      {R"("reduce_dtype": "float16")", v1::FLOAT32, v1::FLOAT16},
      {R"("param_dtype": "bfloat16", "reduce_dtype": "float16")", v1::BFLOAT16, v1::FLOAT16},
  };
  for (const auto& row : rows) {
    Draft draft(Job(absl::StrCat(R"(, "mixed_precision": {)", row.given, R"(},
                    "wrap": {"param_align_bytes": 0, "shard_align_bytes": 0})")),
                1);
    const char half[] = R"({"parameters": [{"name": "w", "shape": [6], "dtype": "bfloat16"}]})";
    ASSERT_TRUE(draft.Announce(0, Announcement("a", half)).ok());
    ASSERT_TRUE(draft.ChangeDType(0, 1, "fp32").ok());
    ASSERT_TRUE(draft.ChangeDType(0, 1, "float32").ok()) << "repeated";
    v1::ModuleAnnouncement root = Announcement("", R"({"children": [{"name": "a"}]})",
                                               R"(, "sealed": ["a"], "dtype_changes": 1)");
    ASSERT_TRUE(draft.Announce(0, root).ok());
    const auto planned = PlanJob(*draft.Seal(), 1);
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->plan.units(0).original_dtype(), v1::FLOAT32);
    EXPECT_EQ(planned->plan.units(0).param_dtype(), row.param) << row.given;
    EXPECT_EQ(planned->plan.units(0).reduce_dtype(), row.reduce) << row.given;
    EXPECT_TRUE(draft.CheckSealed(planned->plan, planned->layout).ok());
  }
}

TEST(DraftTest, AChangeOfDTypeThatWouldCutASealedUnitOtherwiseIsRefused) {
  // 33 elements on 1 rank: to 64 in float32 (128 bytes are 32), and to 64 in bfloat16 as well; 65
  // to 96 and 128.
  for (const auto& [numel, code] : {std::pair(33, absl::StatusCode::kOk),
                                    std::pair(65, absl::StatusCode::kFailedPrecondition)}) {
    Draft draft(Job(), 1);
    ASSERT_TRUE(
        draft
            .Announce(0, Announcement("a", absl::StrCat(R"({"parameters": [{"name": "w",
                        "shape": [)",
                                                        numel, R"(], "dtype": "float32"}]})")))
            .ok());
    const absl::Status changed = draft.ChangeDType(0, 1, "bfloat16");
    EXPECT_EQ(changed.code(), code) << changed;
    if (changed.ok()) continue;
    EXPECT_EQ(Reason(changed), "UNIT_SEALED");
    EXPECT_THAT(Message(changed), HasSubstr("unit \"a\""));
    // Nothing has changed.
    EXPECT_TRUE(draft.Announce(0, Announcement("b", kLinear)).ok());
  }
}

TEST(DraftTest, RanksChangeTheDTypeAtTheSamePlace) {
  Draft draft(Job(R"(, "wrap": {"param_align_bytes": 0, "shard_align_bytes": 0})"), 2);
  ASSERT_TRUE(draft.Announce(0, Announcement("a", kLinear)).ok());
  ASSERT_TRUE(draft.ChangeDType(0, 1, "bfloat16").ok());
  EXPECT_THAT(Message(draft.ChangeDType(1, 1, "bfloat16")),
              HasSubstr("rank 1 changes the model's dtype to bfloat16 before it announces \"a\""));
  ASSERT_TRUE(draft.Announce(1, Announcement("a", kLinear)).ok());
  EXPECT_THAT(Message(draft.Announce(1, Announcement("b", kLinear)).status()),
              HasSubstr("rank 1 announces \"b\" before it changes the model's dtype"));
  EXPECT_EQ(Reason(draft.ChangeDType(1, 1, "float16")), "RANKS_DISAGREE");
  EXPECT_TRUE(draft.ChangeDType(1, 1, "bfloat16").ok());
  EXPECT_EQ(draft.ChangeDType(1, 3, "float32").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Field(draft.ChangeDType(1, 2, "int8")), "dtype");
}

TEST(DraftTest, ANestingTooDeepIsAnErrorAndNoOverflow) {
  v1::ModuleAnnouncement deep = Announcement("a", "{}");
  v1::Module* module = deep.mutable_module();
  for (int i = 0; i < 80; ++i) {
    module = module->add_children();
    module->set_name("x");
  }
  Draft draft(Job(), 1);
  EXPECT_EQ(draft.Announce(0, deep).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DraftTest, AJobThatIsBuiltSaysNothingOfUnits) {
  for (const char* more : {R"(, "wrap": {"policy": "class", "wrap_classes": ["Block"]})",
                           R"(, "wrap": {"wrap_classes": ["Block"]})"}) {
    const auto resolved = ResolveJobSpec(FromJson<v1::JobSpec>(absl::StrCat(
        R"({"name": "b", "workload": "attached", "model": {"built": true})", more, "}")));
    EXPECT_EQ(Field(resolved.status()), "wrap") << resolved.status();
  }
  const auto gpt = ResolveJobSpec(
      FromJson<v1::JobSpec>(R"({"name": "b", "workload": "gpt", "model": {"built": true}})"));
  EXPECT_EQ(Field(gpt.status()), "workload");
  const auto both = ResolveJobSpec(
      FromJson<v1::JobSpec>(R"({"name": "b", "model": {"built": true, "builtin": "gpt"}})"));
  EXPECT_EQ(Field(both.status()), "model");
}

}  // namespace
}  // namespace tessera
