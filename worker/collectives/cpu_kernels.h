// The loops that move parameters and gradients on a CPU. Each runs in the widest instructions that
// the processor has and gives the same bits in all of them.
//
//   CastElements(master, v1::FLOAT32, shard_numel, v1::BFLOAT16, slice);
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
#define TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/instruction_set.h"

namespace tessera {

// Below, a dtype is FLOAT64, FLOAT32, BFLOAT16 or FLOAT16, and what has to be rounded is rounded
// once, to nearest even.

// out[i] = in[i], which is of the dtype `from`, as `to`.
void CastElements(const void* in, DType from, int64_t numel, DType to, void* out,
                  InstructionSet set = WidestInstructionSet());

// sum[i] = sum[i] + in[i]: in[i] is cast to the dtype of `sum`, and added to it in float32, or in
// float64 where `sum` is that.
void AddElements(const void* in, DType from, int64_t numel, DType to, void* sum,
                 InstructionSet set = WidestInstructionSet());

// From and to float32.
void CastFloat32(const float* in, int64_t numel, DType dtype, void* out,
                 InstructionSet set = WidestInstructionSet());
void WidenToFloat32(const void* in, int64_t numel, DType dtype, float* out,
                    InstructionSet set = WidestInstructionSet());

// to[i] = to[i] + in[i], where `to` is of `dtype`: added in float32 (float64 to float64), and then
// rounded.
void AddFloat32(const float* in, int64_t numel, DType dtype, void* to,
                InstructionSet set = WidestInstructionSet());

// A sum over ranks becomes an average in two divisions, one before and one after it: FSDP's rule.
struct DivideFactors {
  double before = 1;
  double after = 1;
};

// What makes a division by `divisor` (the number of ranks, or mixed_precision.divide_factor). For
// float16, whose range a sum would leave: `before` is the power of two nearest above the root of
// `divisor` that divides it, as FSDP and FairScale choose it. For every other dtype one division
// after the sum.
DivideFactors DivideFactorsFor(DType reduce_dtype, double divisor);

struct ReduceOptions {
  DType gradient_dtype = v1::FLOAT32;  // of the inputs
  DType reduce_dtype = v1::FLOAT32;    // what the average is rounded to, once
  DType shard_dtype = v1::FLOAT32;     // what the rounded average is cast to
  DivideFactors divide;
  bool accumulate = false;  // add to the shard, in its dtype, instead of overwriting it
  // So many consecutive inputs are summed first, then these sums, in their order; 0: all at once.
  int64_t group = 0;
};

// FLOAT64 where the gradients or the average are that, else FLOAT32.
DType AccumulationDType(DType gradient_dtype, DType reduce_dtype);

// shard[i] = (inputs[0][i] / before + inputs[1][i] / before + ...) / after. The sum runs in the
// order of `inputs` (see `group`), in AccumulationDType; a division is no multiplication by a
// reciprocal, but where both give the same bits (a power of two).
void ReduceSlice(absl::Span<const void* const> inputs, int64_t numel, const ReduceOptions& options,
                 void* shard, InstructionSet set = WidestInstructionSet());

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_CPU_KERNELS_H_
