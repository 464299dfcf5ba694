#include "common/parameter_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

absl::Status CheckFinite(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", value, "; give a finite number, 0 or more"));
}

}  // namespace

absl::StatusOr<ParameterGroups> ParameterGroups::Create(const v1::OptimizerSpec& optimizer) {
  ParameterGroups groups;
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const v1::ParameterGroup& given = optimizer.groups(i);
    const auto field = [i](absl::string_view name) {
      return absl::StrCat("optimizer.groups[", i, "].", name);
    };
    if (!given.has_pattern())
      return InvalidField(field("pattern"), "is absent; give the FQN of a parameter or a pattern");
    absl::StatusOr<FqnPattern> pattern = FqnPattern::Parse(given.pattern());
    if (!pattern.ok()) return InvalidField(field("pattern"), pattern.status().message());
    TESSERA_RETURN_IF_ERROR(CheckFinite(field("lr"), given.lr()));
    TESSERA_RETURN_IF_ERROR(CheckFinite(field("lr_scale"), given.lr_scale()));
    TESSERA_RETURN_IF_ERROR(CheckFinite(field("weight_decay"), given.weight_decay()));
    if (given.has_lr() && given.has_lr_scale())
      return InvalidField(field("lr_scale"), "is given beside lr; drop one of them");
    if (given.has_lr() && optimizer.lr() == 0) {
      return InvalidField(field("lr"), "cannot be had by scaling: optimizer.lr is 0; give it more");
    }
    Group& group = groups.groups_.emplace_back();
    group.pattern = *std::move(pattern);
    if (given.has_lr()) group.settings.lr_scale = given.lr() / optimizer.lr();
    if (given.has_lr_scale()) group.settings.lr_scale = given.lr_scale();
    if (given.has_weight_decay()) group.settings.weight_decay = given.weight_decay();
  }
  return groups;
}

bool ParameterGroups::Matches(const Group& group, const v1::UnitParameter& parameter) {
  const auto& tied = parameter.tied_fqns();
  return group.pattern.Matches(parameter.fqn()) ||
         std::any_of(tied.begin(), tied.end(),
                     [&](const std::string& fqn) { return group.pattern.Matches(fqn); });
}

int ParameterGroups::Find(const v1::UnitParameter& parameter) const {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (Matches(groups_[i], parameter)) return static_cast<int>(i);
  }
  return -1;
}

ParameterSettings ParameterGroups::SettingsOf(const v1::UnitParameter& parameter) const {
  const int found = Find(parameter);
  return found < 0 ? ParameterSettings() : groups_[found].settings;
}

absl::Status ParameterGroups::CheckUsed(const v1::Plan& plan) const {
  std::vector<bool> used(groups_.size()), matches(groups_.size());
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      const int found = Find(parameter);
      if (found < 0) continue;
      used[found] = true;
      for (size_t i = found; i < groups_.size(); ++i) {
        if (Matches(groups_[i], parameter)) matches[i] = true;
      }
    }
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (used[i]) continue;
    return InvalidField(
        absl::StrCat("optimizer.groups[", i, "].pattern"),
        absl::StrCat("\"", groups_[i].pattern.text(),
                     matches[i] ? "\" matches only parameters that earlier groups have; move the "
                                  "group up or drop it"
                                : "\" matches no parameter of the plan; correct it or drop the "
                                  "group"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> NormTypeOf(const v1::OptimizerSpec& optimizer) {
  if (!optimizer.has_clip_norm_type()) return 2;
  const std::string& text = optimizer.clip_norm_type();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  double p = 0;
  if (absl::SimpleAtod(text, &p) && std::isfinite(p) && p >= 1) return p;
  return InvalidField("optimizer.clip_norm_type",
                      absl::StrCat("is \"", text, "\"; give inf or a number of 1 or more"));
}

}  // namespace tessera
