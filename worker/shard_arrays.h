// The arrays of a rank's shards as bytes with a dtype: the parameters, and what the optimizer keeps
// beside them.
#ifndef TESSERA_WORKER_SHARD_ARRAYS_H_
#define TESSERA_WORKER_SHARD_ARRAYS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/checkpoint_index.h"
#include "common/flat_layout.h"
#include "tessera/v1/plan.pb.h"
#include "worker/shard_span.h"
#include "worker/shard_store.h"

namespace tessera {

inline ShardSpan AsShard(absl::Span<float> values) { return FloatShard(values); }
inline ShardSpan AsShard(const ShardSpan& span) { return span; }

// `array`: kParameterArray, or one of the optimizer's.
inline ShardSpan ShardArray(const ShardStore& store, int unit, int array) {
  return array == kParameterArray ? store.Parameters(unit) : AsShard(store.State(unit, array));
}

// What of the unit's parameters lies in the shard, in order. ShardRecord.parameter is an index.
inline std::vector<ShardRecord> RecordsOfShard(const v1::Unit& unit, const v1::UnitLayout& layout,
                                               int shard_index) {
  std::vector<int64_t> offsets, numels;
  for (int p = 0; p < unit.parameters_size(); ++p) {
    offsets.push_back(layout.parameters(p).offset());
    numels.push_back(unit.parameters(p).numel());
  }
  return ShardRecords(offsets, numels, shard_index * layout.shard_numel(),
                      (shard_index + 1) * layout.shard_numel());
}

}  // namespace tessera

#endif  // TESSERA_WORKER_SHARD_ARRAYS_H_
