#include "coordinator/layout.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/flat_layout.h"
#include "common/job_spec.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

using Slots = google::protobuf::RepeatedPtrField<v1::Slot>;

constexpr __int128 kMaxTotalBytes = __int128{1} << 62;

absl::Status CheckMesh(const v1::JobSpec& resolved, int world_size) {
  if (world_size < 1 || world_size > kMaxWorkers) {
    return InvalidField("world_size", absl::StrCat("is ", world_size, "; give 1 to ", kMaxWorkers));
  }
  if (resolved.mesh().strategy() != "full_shard") {
    return InvalidField("mesh.strategy", absl::StrCat("\"", resolved.mesh().strategy(),
                                                      "\" is not available yet; use full_shard"));
  }
  if (resolved.mesh().replicas() != 1) {
    return InvalidField("mesh.replicas", absl::StrCat("is ", resolved.mesh().replicas(),
                                                      "; replicas are not available yet, give 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TakesResident(const v1::JobSpec& resolved, v1::Device device) {
  const std::string& unshard = resolved.memory().unshard();
  if (device != v1::CUDA) return unshard != "slots";
  if (unshard != "resident") return false;
  return InvalidField("memory.unshard",
                      "is resident, which is for ranks that share memory; GPUs take slots or auto");
}

absl::StatusOr<v1::UnitLayout> LayOutUnit(const v1::Unit& unit, const v1::WrapSpec& wrap,
                                          int shard_count) {
  std::vector<int64_t> numels;
  for (const v1::UnitParameter& parameter : unit.parameters()) numels.push_back(parameter.numel());
  TESSERA_ASSIGN_OR_RETURN(const FlatLayout flat,
                           MakeFlatLayout(numels, {.param_dtype = unit.param_dtype(),
                                                   .param_align_bytes = wrap.param_align_bytes(),
                                                   .shard_align_bytes = wrap.shard_align_bytes(),
                                                   .shard_count = shard_count}));
  v1::UnitLayout layout;
  layout.set_fqn(unit.fqn());
  layout.set_padded_numel(flat.padded_numel);
  layout.set_shard_numel(flat.shard_numel);
  for (int i = 0; i < unit.parameters_size(); ++i) {
    v1::ParameterLayout* parameter = layout.add_parameters();
    parameter->set_fqn(unit.parameters(i).fqn());
    parameter->set_offset(flat.offsets[i]);
  }
  return layout;
}

// Enclosing units come after the ones they enclose.
void SetLevels(const v1::Plan& plan, v1::Layout* layout) {
  for (int i = plan.units_size() - 1; i >= 0; --i) {
    const v1::Unit& unit = plan.units(i);
    if (unit.has_enclosing_unit()) {
      layout->mutable_units(i)->set_level(layout->units(unit.enclosing_unit()).level() + 1);
    }
  }
}

// What the units of a plan ask of slots, in bytes in param_dtype.
struct SlotNeeds {
  std::vector<int64_t> level_bytes;  // of the largest unit of each level; 0: none has elements
  int64_t below_root_bytes = 0;      // of the largest unit below the root
  int below_root_units = 0;          // with elements
};

bool AnyUnit(const v1::Unit& /*unit*/) { return true; }

int64_t UnshardedBytes(const v1::Plan& plan, const v1::Layout& layout, int unit) {
  return layout.units(unit).padded_numel() * DTypeBytes(plan.units(unit).param_dtype());
}

bool Trainable(const v1::Unit& unit) {
  return std::any_of(unit.parameters().begin(), unit.parameters().end(),
                     [](const v1::UnitParameter& p) { return p.requires_grad(); });
}

// Of the units that `wanted` is true for.
SlotNeeds NeedsOf(const v1::Plan& plan, const v1::Layout& layout,
                  absl::FunctionRef<bool(const v1::Unit&)> wanted) {
  SlotNeeds needs;
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes = UnshardedBytes(plan, layout, i);
    if (bytes == 0 || !wanted(plan.units(i))) continue;
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

v1::Slot* AddSlot(int64_t bytes, Slots* slots) {
  const int64_t offset = RoundUp(EndOf(*slots), kSlotAlignBytes);
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
    AddSlot(needs.level_bytes[level], slots)->set_level(static_cast<int>(level));
    if (level > 0) ++below_root;
  }
  spares = std::max(spares, min_slots - slots->size());
  spares = std::min(spares, needs.below_root_units - below_root);
  for (int64_t i = 0; i < spares; ++i) AddSlot(needs.below_root_bytes, slots);
}

// Each unit that `wanted` is true for, for ever in a place of its own.
void PlaceUnits(const v1::Plan& plan, const v1::Layout& layout,
                absl::FunctionRef<bool(const v1::Unit&)> wanted, Slots* slots) {
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes = UnshardedBytes(plan, layout, i);
    if (bytes > 0 && wanted(plan.units(i))) AddSlot(bytes, slots)->set_unit(i);
  }
}

// Units that nothing trains have no gradients, but their masters are gathered through a slot.
void PlaceGradients(const v1::Plan& plan, bool accumulate, v1::Layout* layout) {
  Slots* slots = layout->mutable_gradient_slots();
  if (accumulate) {
    PlaceUnits(plan, *layout, Trainable, slots);
    const auto frozen = [](const v1::Unit& unit) { return !Trainable(unit); };
    PlaceSlots(NeedsOf(plan, *layout, frozen), /*spares=*/0, /*min_slots=*/0, slots);
  } else {
    PlaceSlots(NeedsOf(plan, *layout, AnyUnit), /*spares=*/1, /*min_slots=*/0, slots);
  }
  // Of a file; a GPU's slots are in none.
  if (layout->device() != v1::CUDA) {
    layout->set_gradient_stride_bytes(RoundUp(EndOf(*slots), kPageBytes));
  }
}

// Hands out regions of the rank file one after the other.
class RegionCursor {
 public:
  explicit RegionCursor(int64_t start) : end_(start) {}
  // The offset of a region of `bytes`; 0 for one of none.
  int64_t Take(int64_t bytes) {
    if (bytes == 0) return 0;
    const int64_t offset = RoundUp(end_, kRegionAlignBytes);
    end_ = offset + bytes;
    return offset;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_;
};

void PlaceRankFile(const v1::Plan& plan, int optimizer_arrays, v1::Layout* layout) {
  v1::RankFileLayout* file = layout->mutable_rank_file();
  file->set_optimizer_arrays(optimizer_arrays);
  const int64_t state_bytes = optimizer_arrays * static_cast<int64_t>(sizeof(float));
  file->set_record_bytes(StepRecordBytes(plan.units_size()));
  RegionCursor cursor(file->record_bytes());
  auto& units = *layout->mutable_units();
  const auto shard_bytes = [&](int i, int64_t element_bytes) {
    return units[i].shard_numel() * element_bytes;
  };
  const auto original = [&](int i) { return DTypeBytes(plan.units(i).original_dtype()); };
  for (int i = 0; i < units.size(); ++i) {
    const bool own = !MasterIsResident(plan.units(i), *layout);
    units[i].set_parameter_offset_bytes(own ? cursor.Take(shard_bytes(i, original(i))) : 0);
  }
  for (int i = 0; i < units.size(); ++i) {
    units[i].set_gradient_offset_bytes(cursor.Take(shard_bytes(i, original(i))));
  }
  int64_t undo_bytes = 0;
  for (int i = 0; i < units.size(); ++i) {
    units[i].set_optimizer_offset_bytes(cursor.Take(shard_bytes(i, state_bytes)));
    undo_bytes = std::max(undo_bytes, shard_bytes(i, original(i) + state_bytes));
  }
  file->set_undo_offset_bytes(cursor.Take(undo_bytes));
  file->set_undo_bytes(undo_bytes);
  file->set_total_bytes(cursor.end());
}

// Where gradients have to be cast before they are reduced, which on CPUs needs no memory.
int64_t StagingBytes(const v1::Plan& plan, const v1::Layout& layout) {
  int64_t bytes = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    if (unit.reduce_dtype() == unit.param_dtype()) continue;
    bytes = std::max(bytes, layout.units(i).padded_numel() * DTypeBytes(unit.reduce_dtype()));
  }
  return bytes;
}

absl::Status CheckTotal(const v1::Layout& layout) {
  __int128 per_rank = __int128{layout.gradient_stride_bytes()} + layout.rank_file().total_bytes();
  if (layout.device() == v1::CUDA) {
    per_rank += __int128{EndOf(layout.unsharded_slots())} + EndOf(layout.gradient_slots()) +
                layout.staging_bytes();
  }
  if (per_rank * layout.world_size() + EndOf(layout.unsharded_slots()) <= kMaxTotalBytes)
    return absl::OkStatus();
  return InvalidField(
      "model", "takes more than 2^62 bytes over all ranks; shrink it or the number of ranks");
}

}  // namespace

bool MasterIsResident(const v1::Unit& unit, const v1::Layout& layout) {
  return layout.unshard_mode() == v1::RESIDENT && unit.param_dtype() == unit.original_dtype();
}

absl::StatusOr<v1::Layout> MakeLayout(const v1::Plan& plan, const v1::JobSpec& resolved,
                                      int world_size) {
  TESSERA_RETURN_IF_ERROR(CheckMesh(resolved, world_size));
  v1::Layout layout;
  layout.set_plan_fingerprint(plan.plan_fingerprint());
  layout.set_world_size(world_size);
  layout.set_sharding_strategy(v1::FULL_SHARD);
  layout.set_shard_count(world_size);
  layout.set_replica_count(1);
  layout.set_device(resolved.device() == "cuda" ? v1::CUDA : v1::CPU);
  TESSERA_ASSIGN_OR_RETURN(const bool resident, TakesResident(resolved, layout.device()));
  layout.set_unshard_mode(resident ? v1::RESIDENT : v1::SLOTS);
  // What is always whole is not gathered ahead.
  layout.set_prefetch(resident ? 0 : static_cast<int32_t>(resolved.memory().prefetch()));
  if (world_size == 1)
    layout.add_notes("One rank: every shard is a whole unit, and nothing is sent.");
  for (const v1::Unit& unit : plan.units()) {
    TESSERA_ASSIGN_OR_RETURN(*layout.add_units(), LayOutUnit(unit, resolved.wrap(), world_size));
  }
  SetLevels(plan, &layout);
  const int64_t max_live = resolved.memory().max_live_units();
  if (resident) {
    PlaceUnits(plan, layout, AnyUnit, layout.mutable_unsharded_slots());
  } else {
    PlaceSlots(NeedsOf(plan, layout, AnyUnit), layout.prefetch(),
               max_live == 0 ? 0 : max_live + layout.prefetch(), layout.mutable_unsharded_slots());
  }
  PlaceGradients(plan, resolved.memory().accumulate_unsynchronized(), &layout);
  if (layout.device() == v1::CUDA) layout.set_staging_bytes(StagingBytes(plan, layout));
  PlaceRankFile(plan, OptimizerStateArrays(resolved.optimizer()), &layout);
  TESSERA_RETURN_IF_ERROR(CheckTotal(layout));
  layout.set_layout_fingerprint(LayoutFingerprint(layout, layout.units()));
  return layout;
}

}  // namespace tessera
