// Which elements of which parameters a rank's shard of a unit has.
//
//   for (const ShardSlice& slice : SlicesOf(unit, layout, shard_index)) ...
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_SHARD_SLICES_H_
#define TESSERA_WORKER_SHARD_SLICES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tessera/v1/plan.pb.h"

namespace tessera {

struct ShardSlice {
  int parameter = 0;   // index in the unit
  int64_t begin = 0;   // of the parameter's elements, row-major: the first that the shard has
  int64_t numel = 0;   // above 0
  int64_t offset = 0;  // of that element in the shard
};

// In the shard's order. Padding is in none, and a shard may have none. A shard as long as the unit
// is the unit, whatever `shard_index`.
inline std::vector<ShardSlice> SlicesOf(const v1::Unit& unit, const v1::UnitLayout& layout,
                                        int shard_index) {
  const bool whole = layout.shard_numel() == layout.padded_numel();
  const int64_t first = whole ? 0 : shard_index * layout.shard_numel();
  std::vector<ShardSlice> slices;
  for (int p = 0; p < layout.parameters_size(); ++p) {
    const int64_t start = layout.parameters(p).offset();
    const int64_t begin = std::max(start, first);
    const int64_t end = std::min(start + unit.parameters(p).numel(), first + layout.shard_numel());
    if (begin < end) slices.push_back({p, begin - start, end - begin, begin - first});
  }
  return slices;
}

}  // namespace tessera

#endif  // TESSERA_WORKER_SHARD_SLICES_H_
