// A plan on a mesh -> Layout: the size and place of every buffer, fixed before the first step.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::Layout layout, MakeLayout(plan, resolved, 2));
//
// Unsharded slots: one a level (a unit's level is the number of units around it), as large as the
// level's largest unit: so a unit can be whole together with all its enclosing units. Then
// `prefetch` spares as large as the largest unit below the root; memory.max_live_units adds spares
// until there are max_live_units + prefetch slots. There are never more slots below the root than
// units to put into them. Gradient slots are the same with one spare: a unit's gradients are
// written while those before it are still being reduced. With memory.accumulate_unsynchronized
// instead each unit with a trainable parameter has a gradient slot of its own, and units without
// one (their masters are gathered through gradient slots) one slot a level.
//
// Resident (memory.unshard resident or auto): instead of unsharded slots that take turns, a place
// for each unit with elements, and nothing is gathered ahead.
//
// CUDA (device cuda): the slots are of each GPU's own buffer, which has a staging buffer beside
// them; the host has no unsharded and gradient files.
//
// Rank file: step record; master shards of all units in plan order; reduced gradient shards; the
// optimizer's state; undo. Each unit's part of each starts at a multiple of kRegionAlignBytes.
// Units without elements take no place anywhere, and their offsets are 0.
#ifndef TESSERA_COORDINATOR_LAYOUT_H_
#define TESSERA_COORDINATOR_LAYOUT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

inline constexpr int64_t kSlotAlignBytes = 128;
inline constexpr int64_t kRegionAlignBytes = 64;

// Whether the unit's master shard is the rank's slice of the resident unit, which is so where the
// dtypes agree: it is then in the host's unsharded file and not in the rank's.
bool MasterIsResident(const v1::Unit& unit, const v1::Layout& layout);

// INVALID_ARGUMENT: world_size is not in [1, kMaxWorkers], mesh.strategy is not full_shard or
// mesh.replicas not 1 (others come later), memory.unshard is resident and the device cuda, an
// alignment is out of range, or the buffers of all ranks together take more than 2^62 bytes.
absl::StatusOr<v1::Layout> MakeLayout(const v1::Plan& plan, const v1::JobSpec& resolved,
                                      int world_size);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_LAYOUT_H_
