// Where units are whole and gradients are written: the slots of a layout. For layout.cc.
//
// Unsharded: one slot a level (a unit's level is the number of units around it), as large as the
// level's largest unit: so a unit can be whole together with all its enclosing units. Then
// `prefetch` spares as large as the largest unit below the root; memory.max_live_units adds spares
// until there are max_live_units + prefetch slots. There are never more slots below the root than
// units to put into them. Units that stay whole from forward to backward (shard_grad_op) come first
// and have a place each.
//
// Gradients: the same with one spare: a unit's gradients are written while those before it are
// still being reduced. With memory.accumulate_unsynchronized instead each unit with a trainable
// parameter has a gradient slot of its own, and units without one (their masters are gathered
// through gradient slots) one slot a level. A unit that accumulates in another dtype than backward
// writes has its own place among the accumulation slots, and takes turns in gradient slots.
//
// Reshard slots: a place for the rank's part of each unit that stays sharded over fewer ranks.
#ifndef TESSERA_COORDINATOR_LAYOUT_SLOTS_H_
#define TESSERA_COORDINATOR_LAYOUT_SLOTS_H_

#include <cstdint>

#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Set all slots and the stride. The layout's header and its units, with their levels, are there.
void PlaceAllSlots(const v1::Plan& plan, const v1::MemorySpec& memory, v1::Layout* layout);

// Layout.staging_bytes of a CPU's rank: where there are several hosts, the end of its part of the
// gradient file.
int64_t HostStagingBytesOf(const v1::Plan& plan, const v1::Layout& layout);
// Layout.staging_bytes of a GPU.
int64_t StagingBytesOf(const v1::Plan& plan, const v1::MemorySpec& memory,
                       const v1::Layout& layout);

// Behind the last slot: of the unsharded ones, and of a rank's part.
int64_t UnshardedEnd(const v1::Layout& layout);
int64_t RankPartEnd(const v1::Layout& layout);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_LAYOUT_SLOTS_H_
