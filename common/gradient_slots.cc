#include "common/gradient_slots.h"

namespace tessera {
namespace {

// The slots that a unit may have: its own, or that of its level and, where `spares`, all spares.
std::vector<int> Candidates(const v1::Layout& layout, int unit, int level, bool spares) {
  std::vector<int> candidates;
  for (int slot = 0; slot < layout.gradient_slots_size(); ++slot) {
    const v1::Slot& planned = layout.gradient_slots(slot);
    if (planned.has_unit()) {
      if (planned.unit() == unit) return {slot};
    } else if (planned.has_level() ? planned.level() == level : spares && level > 0) {
      candidates.push_back(slot);
    }
  }
  return candidates;
}

}  // namespace

std::vector<int> GradientSlotsByUnit(const v1::Layout& layout, const std::vector<v1::Unit>& units,
                                     const std::vector<v1::UnitLayout>& layouts) {
  std::vector<bool> encloses(units.size(), false);
  for (const v1::Unit& unit : units) {
    if (unit.has_enclosing_unit()) encloses[unit.enclosing_unit()] = true;
  }
  std::vector<int> slots(units.size(), -1);
  size_t turn = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (layouts[unit].padded_numel() == 0) continue;
    const std::vector<int> candidates =
        Candidates(layout, static_cast<int>(unit), layouts[unit].level(), !encloses[unit]);
    if (candidates.empty()) continue;
    slots[unit] = candidates.size() == 1 ? candidates[0] : candidates[turn++ % candidates.size()];
  }
  return slots;
}

}  // namespace tessera
