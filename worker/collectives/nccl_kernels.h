// The kernels beside NCCL: what a GPU does to parameters and gradients around the collectives, and
// AdamW. Each is one pass with accesses of 16 bytes where all its arrays begin at multiples of 16.
//
//   const int result = LaunchCast({.in = shard, .numel = n, .out = slice,
//                                  .out_dtype = KernelDType::kBFloat16}, stream);
//
// The results are those of the CPU bit for bit (worker/collectives/cpu_kernels.h,
// worker/optimizer.h): both use the functions of nccl_kernel_math.h. Pointers are device memory.
//
// Includes nothing of CUDA: a stream is a cudaStream_t and a result a cudaError_t, 0 for success,
// of the launch alone. Thread-safety: pure functions.
#ifndef TESSERA_WORKER_COLLECTIVES_NCCL_KERNELS_H_
#define TESSERA_WORKER_COLLECTIVES_NCCL_KERNELS_H_

#include <cstdint>

namespace tessera {

enum class KernelDType { kFloat32, kBFloat16, kFloat16 };

// out[i] = in[i] / divide, rounded to nearest even. `out` may be `in` where the dtypes agree.
struct CastRun {
  const void* in = nullptr;
  KernelDType in_dtype = KernelDType::kFloat32;
  int64_t numel = 0;
  float divide = 1;
  void* out = nullptr;
  KernelDType out_dtype = KernelDType::kFloat32;
};

// shard[i] = in[i] / divide, rounded to in_dtype; or added to it. `shard` is no part of `in`.
struct AverageRun {
  const void* in = nullptr;  // this rank's slice of the sum over ranks
  KernelDType in_dtype = KernelDType::kFloat32;
  int64_t numel = 0;
  float divide = 1;
  bool accumulate = false;
  float* shard = nullptr;
};

// One AdamW (or Adam) update, with the order of operations of worker/optimizer.cc. The coefficients
// come from AdamWRunOf (worker/collectives/nccl_adamw.h).
struct AdamWRun {
  int64_t numel = 0;
  const float* gradient = nullptr;
  float* parameter = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  void* copy = nullptr;  // where the new parameters also go, as copy_dtype; null: nowhere
  KernelDType copy_dtype = KernelDType::kBFloat16;
  float gradient_scale = 1;
  float keep = 1;   // AdamW: 1 - learning rate x weight decay
  float added = 0;  // Adam: weight decay
  float weight1 = 0;
  float beta2 = 0;
  float weight2 = 0;
  float step_size = 0;
  float root_correction2 = 1;
  float eps = 0;
};

int LaunchCast(const CastRun& run, void* stream);
int LaunchAverage(const AverageRun& run, void* stream);
int LaunchAdamW(const AdamWRun& run, void* stream);

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_NCCL_KERNELS_H_
