// First values of parameters, made where they will live: each rank fills only its own shard, and no
// memory beyond it is needed.
//
//   TESSERA_RETURN_IF_ERROR(
//       FillShard(unit, unit_layout, assignment.shard_index(), spec.seed(), shard));
//
// Element i of a parameter is a function of (seed, FQN, i) alone, so the same seed is the same
// model at every world size and under every wrap policy. The arithmetic is integers and IEEE double
// add, multiply, divide and square root, with no library function whose last bit depends on the
// processor: the same bits everywhere. (Build with -ffp-contract=off.)
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_PARAMETER_INIT_H_
#define TESSERA_WORKER_PARAMETER_INIT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/shard_span.h"

namespace tessera {

// Fills elements [first, first + values.size()) of the parameter `fqn` by the rule `init`. Rules,
// with what is absent:
//   no rule at all       normal with std 0.02
//   normal               mean 0, std (0.02), by Box-Muller: elements 2k and 2k+1 are a pair
//   uniform              low (0) inclusive to high (1) exclusive, of 2^32 equal steps, rounded to
//                        float32
//   zeros, ones
// INVALID_ARGUMENT: another kind, or figures that make no sense; names the parameter.
absl::Status FillParameter(uint64_t seed, absl::string_view fqn, const v1::Init& init,
                           int64_t first, absl::Span<float> values);

// Fills the rank's shard: the interval [shard_index x shard_numel, (shard_index + 1) x shard_numel)
// of the unit's flat parameter, rounded to the shard's dtype (a uniform element may so become
// `high`; float64 has float32's values). Padding between parameters and at the end becomes 0.
// INVALID_ARGUMENT: shard.numel is not shard_numel, the layout is not of this unit, parameters
// overlap, or as FillParameter.
absl::Status FillShard(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                       uint64_t seed, const ShardSpan& shard);
inline absl::Status FillShard(const v1::Unit& unit, const v1::UnitLayout& layout, int shard_index,
                              uint64_t seed, absl::Span<float> shard) {
  return FillShard(unit, layout, shard_index, seed, FloatShard(shard));
}

}  // namespace tessera

#endif  // TESSERA_WORKER_PARAMETER_INIT_H_
