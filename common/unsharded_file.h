// Where a shard group's slots lie in its host's unsharded file: each group of the host has a part
// of its own, one after the other in the order of their ranks.
#ifndef TESSERA_COMMON_UNSHARDED_FILE_H_
#define TESSERA_COMMON_UNSHARDED_FILE_H_

#include <algorithm>
#include <cstdint>

#include "common/control_file.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Bytes of a group's part, a multiple of 4,096. `layout` may be without its units.
inline int64_t UnshardedGroupBytes(const v1::Layout& layout) {
  int64_t end = 0;
  for (const v1::Slot& slot : layout.unsharded_slots())
    end = std::max(end, slot.offset_bytes() + slot.bytes());
  return RoundUp(end, kPageBytes);
}

// Where the part of the group of a host's local rank begins.
inline int64_t UnshardedGroupOffset(const v1::Layout& layout, int local_rank) {
  return local_rank / std::max(1, layout.shard_count()) * UnshardedGroupBytes(layout);
}

}  // namespace tessera

#endif  // TESSERA_COMMON_UNSHARDED_FILE_H_
