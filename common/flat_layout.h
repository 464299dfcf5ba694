// Where parameters lie in a unit's flat parameter, and where it is cut. FSDP's rule with two knobs:
// each parameter starts at a multiple of param_align_bytes (FSDP with use_orig_params: 16; without:
// 0), and each shard at a multiple of shard_align_bytes (FSDP: 0). Both are bytes of param_dtype,
// which is what moves. Padding is zeros and counts nowhere else.
//
//   100 and 24 elements of bfloat16, 16 and 128 bytes, 2 shards: offsets 0 and 104, padded_numel
//   128, shard_numel 64.
//
// Counts are elements.
#ifndef TESSERA_COMMON_FLAT_LAYOUT_H_
#define TESSERA_COMMON_FLAT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"

namespace tessera {

inline constexpr int64_t kMaxAlignBytes = int64_t{1} << 20;

struct FlatLayoutOptions {
  DType param_dtype = v1::FLOAT32;
  int64_t param_align_bytes = 16;   // 0: parameters follow each other without padding
  int64_t shard_align_bytes = 128;  // 0: shards are as short as they can be
  int64_t shard_count = 1;
};

struct FlatLayout {
  std::vector<int64_t> offsets;  // of each parameter's first element
  int64_t end = 0;               // behind the last parameter, before the padding at the end
  int64_t padded_numel = 0;      // shard_numel x shard_count
  int64_t shard_numel = 0;       // shard i is [i x shard_numel, (i + 1) x shard_numel)
};

// Lays out parameters of `numels` elements in that order. No elements at all give no padding and
// shards of 0. INVALID_ARGUMENT: a negative numel, an alignment outside [0, kMaxAlignBytes],
// shard_count below 1, a dtype without a size.
absl::StatusOr<FlatLayout> MakeFlatLayout(absl::Span<const int64_t> numels,
                                          const FlatLayoutOptions& options);

// The part of one parameter that lies in a flat interval.
struct ShardRecord {
  int parameter = 0;  // index
  int64_t begin = 0;  // within the parameter, half open
  int64_t end = 0;
  int64_t offset_in_shard = 0;  // of element `begin`, from the interval's start
};

// What lies in [begin, end) of the flat parameter, in its order: only parameters with at least one
// element there.
std::vector<ShardRecord> ShardRecords(absl::Span<const int64_t> offsets,
                                      absl::Span<const int64_t> numels, int64_t begin, int64_t end);

}  // namespace tessera

#endif  // TESSERA_COMMON_FLAT_LAYOUT_H_
