// Which gradient slot a unit writes its gradients into: a function of the layout alone.
//
// Ranks need not ask for the same gradients, nor in the same order, before they all call Reduce in
// the same order. If a unit's slot depended on who asked first, two ranks could reduce different
// units with each other and never know. So a slot goes through the same tenants, one for each
// Reduce, on every rank.
//
// A slot that the layout gives to one unit is that unit's. Elsewhere a unit that encloses others
// has the slot of its level to itself, since it may be written together with what it encloses;
// units that enclose none take the slot of their level and the spares in turn, in plan order, so
// that one is written while its neighbour is still being reduced.
#ifndef TESSERA_COMMON_GRADIENT_SLOTS_H_
#define TESSERA_COMMON_GRADIENT_SLOTS_H_

#include <vector>

#include "tessera/v1/plan.pb.h"

namespace tessera {

// By unit: index in layout.gradient_slots; -1: the unit has no elements. `layout` may be without
// its units.
std::vector<int> GradientSlotsByUnit(const v1::Layout& layout, const std::vector<v1::Unit>& units,
                                     const std::vector<v1::UnitLayout>& layouts);

}  // namespace tessera

#endif  // TESSERA_COMMON_GRADIENT_SLOTS_H_
