#include "coordinator/gpt_slots.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/errors.h"
#include "common/gradient_slots.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr absl::string_view kAdvice =
    ", or larger units, as wrap.policy class with wrap_classes Block makes";

// "3" of "h.3.ln_1.weight"; "" outside the blocks.
std::string BlockOf(absl::string_view fqn) {
  if (!absl::StartsWith(fqn, "h.")) return "";
  return std::string(fqn.substr(2, fqn.find('.', 2) - 2));
}

std::string Shown(const v1::Unit& unit) {
  return unit.fqn().empty() ? "the root" : absl::StrCat("\"", unit.fqn(), "\"");
}

// For each block the units that are whole while it computes.
std::vector<std::set<int>> UsedTogether(const v1::Plan& plan) {
  std::map<std::string, std::set<int>> by_block;
  for (int i = 0; i < plan.units_size(); ++i) {
    for (const v1::UnitParameter& parameter : plan.units(i).parameters()) {
      by_block[BlockOf(parameter.fqn())].insert(i);
    }
  }
  const std::set<int> outside = by_block[""];
  by_block.erase("");
  std::vector<std::set<int>> together;
  for (auto& [block, units] : by_block) {
    units.insert(outside.begin(), outside.end());
    together.push_back(units);
  }
  return together;
}

absl::Status CheckUnsharded(const v1::Plan& plan, const v1::Layout& layout,
                            const std::set<int>& together) {
  int spares = 0, level_slots = 0;
  std::set<int> placed;  // units with a slot of their own
  for (const v1::Slot& slot : layout.unsharded_slots()) {
    if (slot.has_unit()) {
      placed.insert(slot.unit());
    } else if (slot.has_level()) {
      ++level_slots;
    } else {
      ++spares;
    }
  }
  std::map<int, int> of_level;
  int in_spares = 0;
  for (const int unit : together) {
    if (placed.count(unit) == 0 && ++of_level[layout.units(unit).level()] > 1) ++in_spares;
  }
  if (in_spares <= spares) return absl::OkStatus();
  const std::string some = Shown(plan.units(*together.begin()));
  return InvalidField("memory.max_live_units",
                      absl::StrCat("leaves too few slots: the workload gpt uses ", together.size(),
                                   " units at once, ", some, " among them; give ",
                                   level_slots + in_spares, kAdvice));
}

absl::Status CheckGradients(const v1::Plan& plan, const std::vector<int>& slots,
                            const std::set<int>& together) {
  std::map<int, int> tenant;
  for (const int unit : together) {
    if (slots[unit] < 0 || plan.units(unit).trainable_numel() == 0) continue;
    const auto [found, added] = tenant.emplace(slots[unit], unit);
    if (added) continue;
    return InvalidField(
        "memory.accumulate_unsynchronized",
        absl::StrCat("is false, which gives ", Shown(plan.units(found->second)), " and ",
                     Shown(plan.units(unit)),
                     " one gradient buffer, and the workload gpt writes both at once; give true",
                     kAdvice));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGptSlots(const v1::Plan& plan, const v1::Layout& layout) {
  const std::vector<int> slots =
      GradientSlotsByUnit(layout, {plan.units().begin(), plan.units().end()},
                          {layout.units().begin(), layout.units().end()});
  for (const std::set<int>& together : UsedTogether(plan)) {
    TESSERA_RETURN_IF_ERROR(CheckUnsharded(plan, layout, together));
    TESSERA_RETURN_IF_ERROR(CheckGradients(plan, slots, together));
  }
  return absl::OkStatus();
}

}  // namespace tessera
