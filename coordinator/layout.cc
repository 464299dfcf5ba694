#include "coordinator/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/flat_layout.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"
#include "coordinator/layout_slots.h"
#include "coordinator/mesh.h"

namespace tessera {
namespace {

constexpr __int128 kMaxTotalBytes = __int128{1} << 62;

// Whether evaluation needs other bytes than training.
bool EvaluatesInAnotherDType(const v1::Plan& plan, const v1::JobSpec& resolved) {
  return resolved.mixed_precision().full_precision_eval() &&
         std::any_of(plan.units().begin(), plan.units().end(), [](const v1::Unit& unit) {
           return unit.param_dtype() != unit.original_dtype();
         });
}

absl::StatusOr<bool> TakesResident(const v1::JobSpec& resolved, const Mesh& mesh,
                                   const v1::Layout& layout) {
  const v1::Device device = layout.device();
  const std::string& unshard = resolved.memory().unshard();
  if (layout.full_precision_eval() && unshard == "resident") {
    return InvalidField("memory.unshard",
                        "is resident, where units are in param_dtype alone, but "
                        "mixed_precision.full_precision_eval wants them in the model's dtype too; "
                        "take slots or auto");
  }
  if (layout.full_precision_eval()) return false;
  const bool shared = device != v1::CUDA && mesh.GroupsShareMemory();
  if (unshard != "resident") return unshard != "slots" && shared;
  if (shared) return true;
  return InvalidField(
      "memory.unshard",
      device == v1::CUDA
          ? "is resident, which is for ranks that share memory; GPUs take slots or auto"
          : absl::StrCat("is resident, which is for shard groups within one host; ",
                         mesh.shard_count, " ranks are on hosts of mesh.local_world_size ",
                         mesh.local_world_size, ", so take slots or auto"));
}

// For messages: the FQN of a unit; the root's is "".
std::string NameOf(const v1::Unit& unit) { return unit.fqn().empty() ? "model" : unit.fqn(); }

// Both shard over the same ranks.
bool SameGroups(v1::ShardingStrategy a, v1::ShardingStrategy b) {
  return a == b || (a != v1::NO_SHARD && b != v1::NO_SHARD && IsHybrid(a) == IsHybrid(b));
}

// What of Unit.overrides is the layout's to apply.
absl::Status ApplyOverrides(const v1::Unit& unit, const Mesh& mesh, v1::UnitLayout* layout) {
  const v1::WrapConfig& own = unit.overrides();
  v1::ShardingStrategy strategy = mesh.strategy;
  if (own.has_strategy()) {
    strategy = StrategyOf(own.strategy());
    if (strategy == v1::SHARDING_STRATEGY_UNSPECIFIED || !SameGroups(strategy, mesh.strategy)) {
      return InvalidField(
          NameOf(unit),
          absl::StrCat("has the strategy \"", own.strategy(),
                       "\" of its own, but mesh.strategy is ", StrategyName(mesh.strategy),
                       "; a unit may take full_shard or shard_grad_op where the job has either, "
                       "and likewise the two hybrid ones"));
    }
    if (strategy != mesh.strategy) layout->set_sharding_strategy(strategy);
  }
  if (own.has_reshard_group()) {
    TESSERA_RETURN_IF_ERROR(Annotate(
        CheckReshardGroup("reshard_group", own.reshard_group(), strategy, mesh.shard_count),
        NameOf(unit)));
    if (own.reshard_group() != mesh.reshard_group) {
      layout->set_reshard_group(static_cast<int>(own.reshard_group()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::UnitLayout> LayOutUnit(const v1::Unit& unit, const v1::WrapSpec& wrap,
                                          const Mesh& mesh) {
  std::vector<int64_t> numels;
  for (const v1::UnitParameter& parameter : unit.parameters()) numels.push_back(parameter.numel());
  const v1::WrapConfig& own = unit.overrides();
  FlatLayoutOptions options;
  options.param_dtype = unit.param_dtype();
  options.param_align_bytes =
      own.has_param_align_bytes() ? own.param_align_bytes() : wrap.param_align_bytes();
  options.shard_align_bytes =
      own.has_shard_align_bytes() ? own.shard_align_bytes() : wrap.shard_align_bytes();
  options.shard_count = mesh.shard_count;
  absl::StatusOr<FlatLayout> flat = MakeFlatLayout(numels, options);
  if (!flat.ok() && (own.has_param_align_bytes() || own.has_shard_align_bytes())) {
    return Annotate(flat.status(), NameOf(unit));
  }
  TESSERA_RETURN_IF_ERROR(flat.status());
  v1::UnitLayout layout;
  layout.set_fqn(unit.fqn());
  layout.set_padded_numel(flat->padded_numel);
  layout.set_shard_numel(flat->shard_numel);
  for (int i = 0; i < unit.parameters_size(); ++i) {
    v1::ParameterLayout* parameter = layout.add_parameters();
    parameter->set_fqn(unit.parameters(i).fqn());
    parameter->set_offset(flat->offsets[i]);
  }
  TESSERA_RETURN_IF_ERROR(ApplyOverrides(unit, mesh, &layout));
  return layout;
}

// Enclosing units come after the ones they enclose. Where the root is no unit, the others are on
// the levels that they would have below it.
void SetLevels(const v1::Plan& plan, v1::Layout* layout) {
  const bool rooted = std::any_of(plan.units().begin(), plan.units().end(), IsRootUnit);
  for (int i = plan.units_size() - 1; i >= 0; --i) {
    const v1::Unit& unit = plan.units(i);
    const int around = unit.has_enclosing_unit() ? layout->units(unit.enclosing_unit()).level()
                                                 : (rooted ? -1 : 0);
    layout->mutable_units(i)->set_level(around + 1);
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
  const auto state_bytes = [&](int i) {
    return optimizer_arrays * DTypeBytes(OptimizerStateDType(plan.units(i).original_dtype()));
  };
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
    const int64_t element_bytes = DTypeBytes(GradientDType(plan.units(i)));
    units[i].set_gradient_offset_bytes(cursor.Take(shard_bytes(i, element_bytes)));
  }
  int64_t undo_bytes = 0;
  for (int i = 0; i < units.size(); ++i) {
    units[i].set_optimizer_offset_bytes(cursor.Take(shard_bytes(i, state_bytes(i))));
    undo_bytes = std::max(undo_bytes, shard_bytes(i, original(i) + state_bytes(i)));
  }
  file->set_undo_offset_bytes(cursor.Take(undo_bytes));
  file->set_undo_bytes(undo_bytes);
  file->set_total_bytes(cursor.end());
}

absl::Status CheckTotal(const v1::Layout& layout) {
  __int128 per_rank = __int128{layout.gradient_stride_bytes()} + layout.rank_file().total_bytes();
  __int128 per_group = UnshardedEnd(layout);
  if (layout.device() == v1::CUDA) {
    per_rank += per_group + RankPartEnd(layout) + layout.staging_bytes();
    per_group = 0;
  }
  if (per_rank * layout.world_size() + per_group * layout.replica_count() <= kMaxTotalBytes)
    return absl::OkStatus();
  return InvalidField(
      "model", "takes more than 2^62 bytes over all ranks; shrink it or the number of ranks");
}

void AddNotes(const Mesh& mesh, v1::Layout* layout) {
  if (mesh.world_size == 1) {
    layout->add_notes("One rank: every shard is a whole unit, and nothing is sent.");
  } else if (mesh.shard_count == 1 && mesh.strategy != v1::NO_SHARD) {
    layout->add_notes(absl::StrCat("mesh.strategy ", StrategyName(mesh.strategy), " with ",
                                   mesh.replica_count, " replicas of ", mesh.world_size,
                                   " ranks has shard groups of one rank: nothing is sharded."));
  } else if (IsHybrid(mesh.strategy) && mesh.replica_count == 1) {
    layout->add_notes(absl::StrCat("mesh.strategy ", StrategyName(mesh.strategy),
                                   " on one host has one shard group: nothing is replicated."));
  }
  if (layout->unshard_mode() == v1::RESIDENT && mesh.reshard_group > 0) {
    layout->add_notes(
        "mesh.reshard_group has no effect on resident units, which are always whole.");
  }
}

absl::Status SetHeader(const v1::Plan& plan, const v1::JobSpec& resolved, const Mesh& mesh,
                       v1::Layout* layout) {
  layout->set_plan_fingerprint(plan.plan_fingerprint());
  layout->set_world_size(mesh.world_size);
  layout->set_sharding_strategy(mesh.strategy);
  layout->set_shard_count(mesh.shard_count);
  layout->set_replica_count(mesh.replica_count);
  layout->set_local_world_size(mesh.local_world_size == mesh.world_size ? 0
                                                                        : mesh.local_world_size);
  layout->set_reshard_group(mesh.reshard_group);
  layout->set_reshard_root(resolved.memory().reshard_root());
  layout->set_device(resolved.device() == "cuda" ? v1::CUDA : v1::CPU);
  layout->set_full_precision_eval(EvaluatesInAnotherDType(plan, resolved));
  TESSERA_ASSIGN_OR_RETURN(const bool resident, TakesResident(resolved, mesh, *layout));
  layout->set_unshard_mode(resident ? v1::RESIDENT : v1::SLOTS);
  // What is always whole is not gathered ahead.
  layout->set_prefetch(resident ? 0 : static_cast<int32_t>(resolved.memory().prefetch()));
  AddNotes(mesh, layout);
  return absl::OkStatus();
}

}  // namespace

bool MasterIsResident(const v1::Unit& unit, const v1::Layout& layout) {
  return layout.unshard_mode() == v1::RESIDENT && unit.param_dtype() == unit.original_dtype();
}

bool IsTrained(const v1::Unit& unit) {
  return std::any_of(unit.parameters().begin(), unit.parameters().end(),
                     [](const v1::UnitParameter& p) { return p.requires_grad(); });
}

bool IsRootUnit(const v1::Unit& unit) { return !unit.has_enclosing_unit() && unit.fqn().empty(); }

v1::ShardingStrategy StrategyOfUnit(const v1::Layout& layout, int unit) {
  const v1::UnitLayout& own = layout.units(unit);
  return own.has_sharding_strategy() ? own.sharding_strategy() : layout.sharding_strategy();
}

int ReshardGroupOfUnit(const v1::Layout& layout, int unit) {
  const v1::ShardingStrategy strategy = StrategyOfUnit(layout, unit);
  if (KeepsUnitsWhole(strategy)) return 1;
  const v1::UnitLayout& own = layout.units(unit);
  const int group = own.has_reshard_group() ? own.reshard_group() : layout.reshard_group();
  return group == 0 ? layout.shard_count() : group;
}

bool StaysWhole(const v1::Plan& plan, const v1::Layout& layout, int unit) {
  if (layout.unshard_mode() == v1::RESIDENT) return true;
  if (IsRootUnit(plan.units(unit)) && !layout.reshard_root()) return true;
  // In a shard group of one a unit is let go of and copied again, which sends nothing.
  return ReshardGroupOfUnit(layout, unit) == 1 &&
         (layout.shard_count() > 1 || KeepsUnitsWhole(StrategyOfUnit(layout, unit)));
}

absl::StatusOr<v1::Layout> MakeLayout(const v1::Plan& plan, const v1::JobSpec& resolved,
                                      int world_size) {
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, MakeMesh(resolved.mesh(), world_size));
  v1::Layout layout;
  TESSERA_RETURN_IF_ERROR(SetHeader(plan, resolved, mesh, &layout));
  for (const v1::Unit& unit : plan.units()) {
    TESSERA_ASSIGN_OR_RETURN(*layout.add_units(), LayOutUnit(unit, resolved.wrap(), mesh));
  }
  SetLevels(plan, &layout);
  PlaceAllSlots(plan, resolved.memory(), &layout);
  if (layout.device() == v1::CUDA) {
    layout.set_staging_bytes(StagingBytesOf(plan, resolved.memory(), layout));
  }
  PlaceRankFile(plan, OptimizerStateArrays(resolved.optimizer()), &layout);
  TESSERA_RETURN_IF_ERROR(CheckTotal(layout));
  layout.set_layout_fingerprint(LayoutFingerprint(layout, layout.units()));
  return layout;
}

std::vector<ParameterShard> ShardsOf(const v1::Unit& unit, const v1::UnitLayout& unit_layout,
                                     const v1::Layout& layout, int rank) {
  std::vector<int64_t> offsets, numels;
  for (int i = 0; i < unit.parameters_size(); ++i) {
    offsets.push_back(unit_layout.parameters(i).offset());
    numels.push_back(unit.parameters(i).numel());
  }
  std::vector<ParameterShard> shards(numels.size());
  const int64_t begin = MeshOf(layout).ShardIndex(rank) * unit_layout.shard_numel();
  for (const ShardRecord& record :
       ShardRecords(offsets, numels, begin, begin + unit_layout.shard_numel())) {
    ParameterShard& shard = shards[record.parameter];
    shard.in_shard = true;
    shard.offset_in_shard = record.offset_in_shard;
    shard.numel_in_shard = record.end - record.begin;
    shard.first = record.begin;
    shard.last = record.end - 1;
  }
  return shards;
}

}  // namespace tessera
