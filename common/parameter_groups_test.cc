#include "common/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/errors.h"

namespace tessera {
namespace {

v1::UnitParameter Parameter(const std::string& fqn, int dimensions) {
  v1::UnitParameter parameter;
  parameter.set_fqn(fqn);
  for (int i = 0; i < dimensions; ++i) parameter.add_shape(2);
  return parameter;
}

v1::ParameterGroup* Add(v1::OptimizerSpec* optimizer, const std::string& pattern) {
  v1::ParameterGroup* group = optimizer->add_groups();
  group->set_pattern(pattern);
  return group;
}

v1::OptimizerSpec Optimizer() {
  v1::OptimizerSpec optimizer;
  optimizer.set_lr(0.5);
  optimizer.set_weight_decay(0.25);
  return optimizer;
}

ParameterSettings Settings(const v1::OptimizerSpec& optimizer, const v1::UnitParameter& parameter) {
  const auto groups = ParameterGroups::Create(optimizer);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return groups->SettingsOf(parameter);
}

TEST(ParameterGroupsTest, WithoutGroupsNothingIsSaidOfAParameter) {
  EXPECT_EQ(Settings(Optimizer(), Parameter("a.w", 2)).weight_decay, std::nullopt);
  EXPECT_EQ(Settings(Optimizer(), Parameter("a.w", 2)).lr_scale, 1);
}

TEST(ParameterGroupsTest, FirstGroupThatMatchesHasTheParameter) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add(&optimizer, "**.b")->set_weight_decay(0.5);
  Add(&optimizer, "h.*.*")->set_lr(2);
  EXPECT_EQ(Settings(optimizer, Parameter("h.0.b", 1)).weight_decay, 0.5);
  EXPECT_EQ(Settings(optimizer, Parameter("h.0.b", 1)).lr_scale, 1);
  // lr 2 beside the optimizer's 0.5.
  EXPECT_EQ(Settings(optimizer, Parameter("h.0.w", 2)).weight_decay, std::nullopt);
  EXPECT_EQ(Settings(optimizer, Parameter("h.0.w", 2)).lr_scale, 4);
  EXPECT_EQ(Settings(optimizer, Parameter("emb.weight", 2)).lr_scale, 1);
}

TEST(ParameterGroupsTest, TiedNameMatchesToo) {
  v1::OptimizerSpec optimizer = Optimizer();
  Add(&optimizer, "head.*")->set_lr_scale(0.125);
  v1::UnitParameter tied = Parameter("emb.weight", 2);
  tied.add_tied_fqns("head.weight");
  EXPECT_EQ(Settings(optimizer, tied).lr_scale, 0.125);
}

TEST(ParameterGroupsTest, GroupThatNoParameterHasIsNamed) {
  v1::Plan plan;
  v1::Unit* unit = plan.add_units();
  *unit->add_parameters() = Parameter("h.0.w", 2);
  *unit->add_parameters() = Parameter("h.0.b", 1);
  const auto check = [&](const std::vector<std::string>& patterns) {
    v1::OptimizerSpec optimizer = Optimizer();
    for (const std::string& pattern : patterns) Add(&optimizer, pattern);
    const auto groups = ParameterGroups::Create(optimizer);
    EXPECT_TRUE(groups.ok()) << groups.status();
    return groups->CheckUsed(plan);
  };
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({"h.0.w", "h.**"}).ok());
  const absl::Status none = check({"h.**", "h.1.w"});
  EXPECT_EQ(Field(none), "optimizer.groups[1].pattern");
  EXPECT_THAT(std::string(none.message()), testing::HasSubstr("\"h.1.w\" matches no parameter"));
  const absl::Status late = check({"h.**", "h.0.w"});
  EXPECT_EQ(Field(late), "optimizer.groups[1].pattern");
  EXPECT_THAT(std::string(late.message()), testing::HasSubstr("earlier groups have"));
}

TEST(NormTypeTest, IsTwoUnlessSaidOtherwise) {
  v1::OptimizerSpec optimizer;
  EXPECT_EQ(*NormTypeOf(optimizer), 2);
  optimizer.set_clip_norm_type("1.5");
  EXPECT_EQ(*NormTypeOf(optimizer), 1.5);
  optimizer.set_clip_norm_type("inf");
  EXPECT_EQ(*NormTypeOf(optimizer), std::numeric_limits<double>::infinity());
  for (const char* wrong : {"", "0.99", "nan", "-inf", "infinity", "two"}) {
    optimizer.set_clip_norm_type(wrong);
    EXPECT_EQ(Field(NormTypeOf(optimizer).status()), "optimizer.clip_norm_type") << wrong;
  }
}

}  // namespace
}  // namespace tessera
