// The one allocation on a rank's GPU that its collectives work in: unsharded slots, gradient slots
// (with reshard and accumulation slots, whose offsets go on from theirs) and the staging buffer,
// one after the other. The coordinator forecasts it, the worker makes it.
//
//   const DeviceArena arena = DeviceArenaOf(layout);
//   char* staging = memory + arena.staging_offset;
//
// Thread-safety: a pure function.
#ifndef TESSERA_COMMON_DEVICE_ARENA_H_
#define TESSERA_COMMON_DEVICE_ARENA_H_

#include <algorithm>
#include <cstdint>

#include "common/control_file.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct DeviceArena {
  // The unsharded slots begin at 0. Multiples of 4,096: what NCCL wants of registered buffers.
  int64_t gradients_offset = 0;
  int64_t staging_offset = 0;
  int64_t bytes = 0;
};

inline DeviceArena DeviceArenaOf(const v1::Layout& layout) {
  const auto end_of = [](const auto& slots) {
    int64_t end = 0;
    for (const v1::Slot& slot : slots) end = std::max(end, slot.offset_bytes() + slot.bytes());
    return RoundUp(end, kPageBytes);
  };
  DeviceArena arena;
  arena.gradients_offset = end_of(layout.unsharded_slots());
  arena.staging_offset = arena.gradients_offset +
                         std::max({end_of(layout.gradient_slots()), end_of(layout.reshard_slots()),
                                   end_of(layout.accumulation_slots())});
  arena.bytes = arena.staging_offset + RoundUp(layout.staging_bytes(), kPageBytes);
  return arena;
}

}  // namespace tessera

#endif  // TESSERA_COMMON_DEVICE_ARENA_H_
