// The least that a data path can cost: the same traffic by plain loops, without anybody to wait for
// or agree with. What the operations of `tessera bench collective` are held against.
//
//   bare::ToBfloat16(shard, shard_numel, unit + rank * shard_numel);
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_BENCH_BARE_LOOPS_H_
#define TESSERA_WORKER_BENCH_BARE_LOOPS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace tessera::bare {

// Rounds to nearest even; knows no NaN.
void ToBfloat16(const float* in, int64_t numel, uint16_t* out);

// out[i] = the mean over `inputs` of their element i, in their order.
void Average(absl::Span<const float* const> inputs, int64_t numel, float* out);
void AverageBfloat16(absl::Span<const uint16_t* const> inputs, int64_t numel, float* out);

// Reads and writes what AdamW with a bfloat16 copy reads and writes, and computes next to nothing.
void StreamAdamW(const float* gradient, int64_t numel, float* parameter, float* exp_avg,
                 float* exp_avg_sq, uint16_t* copy);

}  // namespace tessera::bare

#endif  // TESSERA_WORKER_BENCH_BARE_LOOPS_H_
