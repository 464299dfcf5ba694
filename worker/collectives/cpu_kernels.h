// The loops that move parameters and gradients on a CPU. Each runs in the widest instructions that
// the processor has and gives the same bits in all of them.
//
//   CastFloat32(master, shard_numel, v1::BFLOAT16, slice);
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
#define TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/instruction_set.h"

namespace tessera {

// out[i] = in[i] as `dtype` (FLOAT32, BFLOAT16 or FLOAT16), rounded to nearest even.
void CastFloat32(const float* in, int64_t numel, DType dtype, void* out,
                 InstructionSet set = WidestInstructionSet());

// out[i] = in[i], which is of `dtype` (FLOAT32, BFLOAT16 or FLOAT16), as float32. Exact.
void WidenToFloat32(const void* in, int64_t numel, DType dtype, float* out,
                    InstructionSet set = WidestInstructionSet());

// to[i] = to[i] + in[i], where `to` is of `dtype`: added in float32 and rounded to nearest even.
void AddFloat32(const float* in, int64_t numel, DType dtype, void* to,
                InstructionSet set = WidestInstructionSet());

// A sum over ranks becomes an average in two divisions, one before and one after it: FSDP's rule.
struct DivideFactors {
  float before = 1;
  float after = 1;
};

// For float16, whose range a sum would leave: `before` is the power of two nearest above the root
// of `ranks` that divides it, as FSDP and FairScale choose it. For every other dtype one division
// after the sum.
DivideFactors DivideFactorsFor(DType reduce_dtype, int64_t ranks);

struct ReduceOptions {
  DType gradient_dtype = v1::FLOAT32;  // of the inputs
  DType reduce_dtype = v1::FLOAT32;    // what the average is rounded to, once
  DivideFactors divide;
  bool accumulate = false;  // add to the shard instead of overwriting it
  // So many consecutive inputs are summed first, then these sums, in their order; 0: all at once.
  int64_t group = 0;
};

// shard[i] = (inputs[0][i] / before + inputs[1][i] / before + ...) / after. The sum runs in the
// order of `inputs`, in float32; a division is no multiplication by a reciprocal, but where both
// give the same bits (a power of two).
void ReduceSlice(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
                 float* shard, InstructionSet set = WidestInstructionSet());

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
