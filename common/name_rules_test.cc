#include "common/name_rules.h"

#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

google::protobuf::RepeatedPtrField<v1::NameRule> Rules(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  google::protobuf::RepeatedPtrField<v1::NameRule> rules;
  for (const auto& [from, to] : pairs) {
    v1::NameRule* rule = rules.Add();
    rule->set_from(from);
    rule->set_to(to);
  }
  return rules;
}

TEST(NameRulesTest, FirstRuleThatMatchesTheWholeNameApplies) {
  const auto rules = NameRules::Create("f", Rules({{R"(transformer\.(.*))", R"(\1)"},
                                                   {R"(h\.(\d+)\.attn\.(bias|masked_bias))", ""},
                                                   {R"(layers\.(\d+)\.(w|b))", R"(\2.of.\1)"},
                                                   {"wte", "never: not the whole name"}}));
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->Apply("transformer.wte.weight"), "wte.weight");
  EXPECT_EQ(rules->Apply("transformer.transformer.x"), "transformer.x");
  EXPECT_EQ(rules->Apply("h.11.attn.bias"), "");
  EXPECT_EQ(rules->Apply("layers.3.w"), "w.of.3");
  EXPECT_EQ(rules->Apply("wte.weight"), "wte.weight");
  EXPECT_EQ(rules->Apply(""), "");
}

TEST(NameRulesTest, WithoutRulesNamesStay) {
  EXPECT_EQ(NameRules().Apply("wte.weight"), "wte.weight");
}

TEST(NameRulesTest, WhatIsNoRuleIsRefusedByItsField) {
  const absl::Status expression = NameRules::Create("n", Rules({{"a", "b"}, {"(", ""}})).status();
  EXPECT_EQ(Field(expression), "n[1].from");
  EXPECT_THAT(expression.message(), HasSubstr("\"(\" is no regular expression"));
  const absl::Status group = NameRules::Create("n", Rules({{"(a)", R"(\2)"}})).status();
  EXPECT_EQ(Field(group), "n[0].to");
  google::protobuf::RepeatedPtrField<v1::NameRule> absent;
  absent.Add()->set_to("x");
  EXPECT_EQ(Field(NameRules::Create("n", absent).status()), "n[0].from");
}

}  // namespace
}  // namespace tessera
