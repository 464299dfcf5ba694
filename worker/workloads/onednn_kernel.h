// Compiled oneDNN primitives on the CPU, of float32 but where it says otherwise, behind
// absl::Status: oneDNN reports by exceptions, and none leaves this file's functions. Tensors are
// row-major and contiguous.
//
//   TESSERA_ASSIGN_OR_RETURN(const auto softmax, MakeSoftmax(rows, columns));
//   TESSERA_RETURN_IF_ERROR(softmax->Run({{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, probabilities}}));
//
// A kernel is compiled once, for one shape, and run with any memory of that shape; it owns none of
// it. Which implementation oneDNN chose is shown by DNNL_VERBOSE=1. Those used here were measured:
// inner product and matmul on plain layouts reach 220-250 GFLOP/s a core with AVX-512 and 110-130
// with AVX2; layer norm, GELU, softmax forward and exp are vectorised on both; softmax and
// log-softmax backward are not on AVX2, so the layers do without these.
//
// Errors of the Make functions and of Run:
//   INVALID_ARGUMENT    an extent is not positive, or Run's arguments are not those of the kernel.
//   RESOURCE_EXHAUSTED  out of memory.
//   INTERNAL            oneDNN refused; the message has its reason.
// Thread-safety: a kernel is used by one thread at a time; inside it computes with
// SetComputeThreads threads.
#ifndef TESSERA_WORKER_WORKLOADS_ONEDNN_KERNEL_H_
#define TESSERA_WORKER_WORKLOADS_ONEDNN_KERNEL_H_

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dnnl_types.h"

namespace tessera {

// How many threads compute what the calling thread runs. Call before any kernel is made: kernels
// are compiled for it. With one thread the same inputs give the same bits, run after run.
void SetComputeThreads(int threads);

class OneDnnKernel {
 public:
  struct Argument {
    int id;            // DNNL_ARG_...
    const void* data;  // written to where the primitive writes to it
  };
  class Impl;

  explicit OneDnnKernel(std::unique_ptr<Impl> impl);
  ~OneDnnKernel();
  OneDnnKernel(const OneDnnKernel&) = delete;
  OneDnnKernel& operator=(const OneDnnKernel&) = delete;

  // Returns when the result is there. Every argument of the primitive is given, in any order.
  // Allocates no tensor.
  absl::Status Run(std::initializer_list<Argument> arguments);

 private:
  std::unique_ptr<Impl> impl_;
};

using KernelPtr = std::unique_ptr<OneDnnKernel>;

// How a weight matrix lies in memory.
enum class WeightOrder {
  kInOut,  // [in, out], as GPT-2's Conv1D
  kOutIn,  // [out, in], as an embedding that is used as the output layer
};

// output [rows, out] = input [rows, in] x weight + bias. Arguments: SRC, WEIGHTS, BIAS, DST and
// their DIFF_ counterparts.
struct LinearKernels {
  KernelPtr forward;
  KernelPtr backward_input;       // DIFF_SRC from WEIGHTS, DIFF_DST
  KernelPtr backward_parameters;  // DIFF_WEIGHTS, DIFF_BIAS from SRC, DIFF_DST
};
absl::StatusOr<LinearKernels> MakeLinear(int64_t rows, int64_t in, int64_t out, WeightOrder order,
                                         bool has_bias);

// Whether the processor multiplies bfloat16 by itself (AVX512_BF16 or AMX), as far as
// DNNL_MAX_CPU_ISA lets oneDNN use it.
bool ProcessorMultipliesBFloat16();

// As MakeLinear, but SRC, WEIGHTS and DIFF_DST are bfloat16; everything else is float32, and so is
// the accumulation. INTERNAL: also where the processor does not multiply bfloat16.
absl::StatusOr<LinearKernels> MakeBFloat16Linear(int64_t rows, int64_t in, int64_t out,
                                                 WeightOrder order, bool has_bias);

// Over the last dimension of [rows, width]. forward: SRC, SCALE, SHIFT -> DST, MEAN, VARIANCE
// [rows]. backward: SRC, MEAN, VARIANCE, SCALE, SHIFT, DIFF_DST -> DIFF_SRC, DIFF_SCALE,
// DIFF_SHIFT.
struct LayerNormKernels {
  KernelPtr forward;
  KernelPtr backward;
};
absl::StatusOr<LayerNormKernels> MakeLayerNorm(int64_t rows, int64_t width, float epsilon);

// GELU by the tanh approximation. forward: SRC -> DST. backward: SRC, DIFF_DST -> DIFF_SRC, which
// may be DIFF_DST's memory.
struct GeluKernels {
  KernelPtr forward;
  KernelPtr backward;
};
absl::StatusOr<GeluKernels> MakeGelu(int64_t rows, int64_t width);

// Of each of `groups` pairs: DST [m, n] = SRC [m, k] x WEIGHTS [k, n]. A transposed operand lies in
// memory as [k, m] or [n, k].
struct MatmulShape {
  int64_t groups = 1;
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  bool transpose_source = false;
  bool transpose_weights = false;
};
absl::StatusOr<KernelPtr> MakeMatmul(const MatmulShape& shape);

// Over the last dimension of [rows, columns]; SRC -> DST, which may be the same memory.
absl::StatusOr<KernelPtr> MakeSoftmax(int64_t rows, int64_t columns);
absl::StatusOr<KernelPtr> MakeLogSoftmax(int64_t rows, int64_t columns);
// Element by element; SRC -> DST, which may be the same memory.
absl::StatusOr<KernelPtr> MakeExp(int64_t rows, int64_t columns);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_ONEDNN_KERNEL_H_
