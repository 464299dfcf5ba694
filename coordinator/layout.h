// A plan on a mesh -> Layout: the size and place of every buffer, fixed before the first step.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::Layout layout, MakeLayout(plan, resolved, 2));
//
// One plan has a layout for each world size and strategy (coordinator/mesh.h has the groups). All
// units are cut into the same number of shards; a unit's overrides may change its alignment, and
// whether it stays whole between its forward and its backward.
//
// Unsharded slots: layout_slots.h. Resident (memory.unshard resident, or auto where every shard
// group lies within a host): a place for each unit with elements, and nothing is gathered ahead.
// With no_shard a rank is its shard group: what is unsharded in slots is a copy of its own master,
// and with resident the master itself where the dtypes agree.
//
// CUDA (device cuda): the slots are of each GPU's own buffer, which has a staging buffer beside
// them; the host has no unsharded and gradient files.
//
// Rank file: step record; master shards of all units in plan order; reduced gradient shards (in the
// unit's gradient_dtype); the optimizer's state; undo. Each unit's part of each starts at a
// multiple of kRegionAlignBytes. Units without elements take no place anywhere, and their offsets
// are 0. Parameters without elements have an offset, and no element of any shard.
#ifndef TESSERA_COORDINATOR_LAYOUT_H_
#define TESSERA_COORDINATOR_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unit_dtypes.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

inline constexpr int64_t kSlotAlignBytes = 128;
inline constexpr int64_t kRegionAlignBytes = 64;

// Whether the unit's master shard is the rank's slice of the resident unit, which is so where the
// dtypes agree: it is then in the host's unsharded file and not in the rank's.
bool MasterIsResident(const v1::Unit& unit, const v1::Layout& layout);

// Whether a parameter of the unit has requires_grad.
bool IsTrained(const v1::Unit& unit);

// The unit around all others; there is none where the policy left parameters outside of units.
bool IsRootUnit(const v1::Unit& unit);

// What the unit has by itself, or else the layout's.
v1::ShardingStrategy StrategyOfUnit(const v1::Layout& layout, int unit);
// Ranks over which the unit is sharded between forward and backward; shard_count where it is not
// otherwise, 1 where it stays whole.
int ReshardGroupOfUnit(const v1::Layout& layout, int unit);

// Whether the unit stays whole from its forward to its backward: the root always, and those whose
// strategy or reshard group says so.
bool StaysWhole(const v1::Plan& plan, const v1::Layout& layout, int unit);

// INVALID_ARGUMENT: as MakeMesh; memory.unshard is resident and the device cuda or a shard group
// larger than a host; an alignment is out of range; a unit's overrides do not fit the job's
// strategy; or the buffers of all ranks together take more than 2^62 bytes.
absl::StatusOr<v1::Layout> MakeLayout(const v1::Plan& plan, const v1::JobSpec& resolved,
                                      int world_size);

// FSDP's shard metadata: what of a parameter lies in a rank's shard of its unit.
struct ParameterShard {
  bool in_shard = false;        // the rest is 0 where not
  int64_t offset_in_shard = 0;  // of its first element here, from the shard's start
  int64_t numel_in_shard = 0;
  int64_t first = 0;  // within the parameter, both inclusive
  int64_t last = 0;
};

// For each parameter of `unit`, in the unit's order, with the shard of `rank`.
std::vector<ParameterShard> ShardsOf(const v1::Unit& unit, const v1::UnitLayout& unit_layout,
                                     const v1::Layout& layout, int rank);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_LAYOUT_H_
