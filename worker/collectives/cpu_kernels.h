// The loops that move parameters and gradients on a CPU.
#ifndef TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
#define TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace tessera {

// shard[i] = (inputs[0][i] + inputs[1][i] + ...) / divisor, or added to shard[i]. The sum runs in
// the order of `inputs`, in float32; the division is a division, so that the result is the
// correctly rounded quotient of the sum.
void ReduceSlice(absl::Span<const float* const> inputs, int64_t numel, float divisor,
                 bool accumulate, float* shard);

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
