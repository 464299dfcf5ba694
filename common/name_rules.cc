#include "common/name_rules.h"

#include <re2/re2.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {
namespace {

constexpr int kMaxGroups = 10;  // \0 to \9

}  // namespace

NameRules::NameRules() = default;
NameRules::NameRules(NameRules&&) noexcept = default;
NameRules& NameRules::operator=(NameRules&&) noexcept = default;
NameRules::~NameRules() = default;

absl::StatusOr<NameRules> NameRules::Create(
    absl::string_view field, const google::protobuf::RepeatedPtrField<v1::NameRule>& rules) {
  NameRules made;
  RE2::Options options;
  options.set_log_errors(false);
  for (int i = 0; i < rules.size(); ++i) {
    const std::string from_field = absl::StrCat(field, "[", i, "].from");
    if (!rules[i].has_from()) return InvalidField(from_field, "is absent; give an expression");
    auto from = std::make_unique<RE2>(rules[i].from(), options);
    if (!from->ok()) {
      return InvalidField(from_field, absl::StrCat("\"", rules[i].from(),
                                                   "\" is no regular expression: ", from->error()));
    }
    std::string error;
    if (!from->CheckRewriteString(rules[i].to(), &error)) {
      return InvalidField(absl::StrCat(field, "[", i, "].to"),
                          absl::StrCat("\"", rules[i].to(), "\" does not fit its from: ", error));
    }
    made.rules_.push_back({std::move(from), rules[i].to()});
  }
  return made;
}

std::string NameRules::Apply(const std::string& name) const {
  for (const Rule& rule : rules_) {
    std::array<re2::StringPiece, kMaxGroups> groups;
    const int count = 1 + RE2::MaxSubmatch(rule.to);
    if (!rule.from->Match(name, 0, name.size(), RE2::ANCHOR_BOTH, groups.data(), count)) continue;
    std::string to;
    return rule.from->Rewrite(&to, rule.to, groups.data(), count) ? to : name;
  }
  return name;
}

}  // namespace tessera
