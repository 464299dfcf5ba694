#include "coordinator/layout_slots.h"

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/host_staging.h"
#include "coordinator/layout.h"
#include "coordinator/mesh.h"

namespace tessera {
namespace {

using Slots = google::protobuf::RepeatedPtrField<v1::Slot>;
using Wanted = absl::FunctionRef<bool(int)>;  // of a unit's index

// What the units of a plan ask of slots, in bytes in param_dtype.
struct SlotNeeds {
  std::vector<int64_t> level_bytes;  // of the largest unit of each level; 0: none has elements
  int64_t below_root_bytes = 0;      // of the largest unit below the root
  int below_root_units = 0;          // with elements
};

bool AnyUnit(int /*unit*/) { return true; }

int64_t UnshardedBytes(const v1::Plan& plan, const v1::Layout& layout, int unit) {
  return layout.units(unit).padded_numel() * DTypeBytes(plan.units(unit).param_dtype());
}

// What an unsharded slot has to hold of a unit: it in param_dtype, or in what it is evaluated in.
int64_t SlotBytes(const v1::Plan& plan, const v1::Layout& layout, int unit) {
  const int64_t bytes = UnshardedBytes(plan, layout, unit);
  if (!layout.full_precision_eval()) return bytes;
  return std::max(
      bytes, layout.units(unit).padded_numel() * DTypeBytes(plan.units(unit).original_dtype()));
}

using BytesOf = int64_t (*)(const v1::Plan&, const v1::Layout&, int unit);

// Of the units that `wanted` is true for.
SlotNeeds NeedsOf(const v1::Plan& plan, const v1::Layout& layout, Wanted wanted,
                  BytesOf bytes_of = UnshardedBytes) {
  SlotNeeds needs;
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes = bytes_of(plan, layout, i);
    if (bytes == 0 || !wanted(i)) continue;
    const size_t level = layout.units(i).level();
    if (needs.level_bytes.size() <= level) needs.level_bytes.resize(level + 1, 0);
    needs.level_bytes[level] = std::max(needs.level_bytes[level], bytes);
    if (level == 0) continue;
    needs.below_root_bytes = std::max(needs.below_root_bytes, bytes);
    ++needs.below_root_units;
  }
  return needs;
}

int64_t EndOf(const Slots& slots) {
  return slots.empty() ? 0 : slots.rbegin()->offset_bytes() + slots.rbegin()->bytes();
}

// Behind `start` and all slots that are there already.
v1::Slot* AddSlot(int64_t bytes, int64_t start, Slots* slots) {
  const int64_t offset = RoundUp(std::max(start, EndOf(*slots)), kSlotAlignBytes);
  v1::Slot* slot = slots->Add();
  slot->set_offset_bytes(offset);
  slot->set_bytes(bytes);
  return slot;
}

// One slot a level, then spares: `spares`, or more until there are `min_slots`, and no more than
// have a use.
void PlaceSlots(const SlotNeeds& needs, int64_t spares, int64_t min_slots, Slots* slots) {
  int64_t below_root = 0;
  for (size_t level = 0; level < needs.level_bytes.size(); ++level) {
    if (needs.level_bytes[level] == 0) continue;
    AddSlot(needs.level_bytes[level], 0, slots)->set_level(static_cast<int>(level));
    if (level > 0) ++below_root;
  }
  spares = std::max(spares, min_slots - slots->size());
  spares = std::min(spares, needs.below_root_units - below_root);
  for (int64_t i = 0; i < spares; ++i) AddSlot(needs.below_root_bytes, 0, slots);
}

// Each unit that `wanted` is true for, for ever in a place of its own.
void PlaceUnits(const v1::Plan& plan, const v1::Layout& layout, Wanted wanted, Slots* slots,
                BytesOf bytes_of = UnshardedBytes) {
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes = bytes_of(plan, layout, i);
    if (bytes > 0 && wanted(i)) AddSlot(bytes, 0, slots)->set_unit(i);
  }
}

void PlaceUnsharded(const v1::Plan& plan, const v1::MemorySpec& memory, v1::Layout* layout) {
  Slots* slots = layout->mutable_unsharded_slots();
  if (layout->unshard_mode() == v1::RESIDENT) return PlaceUnits(plan, *layout, AnyUnit, slots);
  const auto is_root = [](const v1::Unit& unit) { return IsRootUnit(unit); };
  const bool one_root = std::count_if(plan.units().begin(), plan.units().end(), is_root) == 1;
  const auto own_place = [&](int i) {
    // The slot of level 0 is the root's and nobody else's.
    const bool root_slot =
        one_root && is_root(plan.units(i)) && !KeepsUnitsWhole(StrategyOfUnit(*layout, i));
    return StaysWhole(plan, *layout, i) && !root_slot;
  };
  PlaceUnits(plan, *layout, own_place, slots, SlotBytes);
  const int64_t max_live = memory.max_live_units();
  const auto shares = [&](int i) { return !own_place(i); };
  PlaceSlots(NeedsOf(plan, *layout, shares, SlotBytes), layout->prefetch(),
             max_live == 0 ? 0 : max_live + layout->prefetch(), slots);
}

bool AccumulatesApart(const v1::Unit& unit) {
  return IsTrained(unit) && UnsyncedGradientDType(unit) != unit.param_dtype();
}

// Units that nothing trains have no gradients, but their masters are gathered through a slot.
void PlaceGradients(const v1::Plan& plan, bool accumulate, v1::Layout* layout) {
  Slots* slots = layout->mutable_gradient_slots();
  if (!accumulate) {
    PlaceSlots(NeedsOf(plan, *layout, AnyUnit), /*spares=*/1, /*min_slots=*/0, slots);
    return;
  }
  const auto own_place = [&](int i) {
    return IsTrained(plan.units(i)) && !AccumulatesApart(plan.units(i));
  };
  PlaceUnits(plan, *layout, own_place, slots);
  const bool apart = std::any_of(plan.units().begin(), plan.units().end(), AccumulatesApart);
  PlaceSlots(NeedsOf(plan, *layout, [&](int i) { return !own_place(i); }),
             /*spares=*/apart ? 1 : 0, /*min_slots=*/0, slots);
}

void PlaceResharded(const v1::Plan& plan, v1::Layout* layout) {
  if (layout->unshard_mode() == v1::RESIDENT) return;
  const int64_t start = RankPartEnd(*layout);
  for (int i = 0; i < plan.units_size(); ++i) {
    const int group = ReshardGroupOfUnit(*layout, i);
    const int64_t bytes = UnshardedBytes(plan, *layout, i) / group;
    if (bytes == 0 || group == layout->shard_count() || StaysWhole(plan, *layout, i)) continue;
    AddSlot(bytes, start, layout->mutable_reshard_slots())->set_unit(i);
  }
}

void PlaceAccumulated(const v1::Plan& plan, v1::Layout* layout) {
  const int64_t start = RankPartEnd(*layout);
  for (int i = 0; i < plan.units_size(); ++i) {
    if (!AccumulatesApart(plan.units(i)) || layout->units(i).padded_numel() == 0) continue;
    const int64_t bytes =
        layout->units(i).padded_numel() * DTypeBytes(UnsyncedGradientDType(plan.units(i)));
    AddSlot(bytes, start, layout->mutable_accumulation_slots())->set_unit(i);
  }
}

}  // namespace

int64_t UnshardedEnd(const v1::Layout& layout) { return EndOf(layout.unsharded_slots()); }

int64_t RankPartEnd(const v1::Layout& layout) {
  return std::max({EndOf(layout.gradient_slots()), EndOf(layout.reshard_slots()),
                   EndOf(layout.accumulation_slots())});
}

void PlaceAllSlots(const v1::Plan& plan, const v1::MemorySpec& memory, v1::Layout* layout) {
  PlaceUnsharded(plan, memory, layout);
  PlaceGradients(plan, memory.accumulate_unsynchronized(), layout);
  PlaceResharded(plan, layout);
  if (memory.accumulate_unsynchronized()) PlaceAccumulated(plan, layout);
  // Of a file; a GPU's slots are in none.
  if (layout->device() != v1::CUDA) {
    layout->set_staging_bytes(HostStagingBytesOf(plan, *layout));
    layout->set_gradient_stride_bytes(RoundUp(RankPartEnd(*layout), kPageBytes) +
                                      RoundUp(layout->staging_bytes(), kPageBytes));
  }
}

// A rank's slice of a unit's gradients, summed over its host in the dtype that sums are added in,
// and what arrives from other hosts. Shard groups over several hosts do not run yet.
int64_t HostStagingBytesOf(const v1::Plan& plan, const v1::Layout& layout) {
  const Mesh mesh = MeshOf(layout);
  if (mesh.Hosts() == 1 || !mesh.GroupsShareMemory()) return 0;
  int64_t slice = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    if (!IsTrained(unit)) continue;
    const bool wide = unit.reduce_dtype() == v1::FLOAT64 || unit.param_dtype() == v1::FLOAT64;
    const v1::DType sum = wide ? v1::FLOAT64 : v1::FLOAT32;
    slice = std::max(slice, layout.units(i).shard_numel() * DTypeBytes(sum));
  }
  return HostLinkStagingBytes(mesh.Hosts()) + slice;
}

// Where gradients have to be cast before they are reduced, which within a host of CPUs needs no
// memory.
int64_t StagingBytesOf(const v1::Plan& plan, const v1::MemorySpec& memory,
                       const v1::Layout& layout) {
  int64_t bytes = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    const v1::DType from =
        memory.accumulate_unsynchronized() ? UnsyncedGradientDType(unit) : unit.param_dtype();
    if (unit.reduce_dtype() == from) continue;
    bytes = std::max(bytes, layout.units(i).padded_numel() * DTypeBytes(unit.reduce_dtype()));
  }
  return bytes;
}

}  // namespace tessera
