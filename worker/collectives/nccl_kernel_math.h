// What the kernels of nccl_kernels.h do to one element, compiled for the GPU by nvcc and for the
// CPU by the tests, which hold it against the CPU's own loops bit for bit where there is no GPU.
//
//   const uint16_t rounded = BFloat16Format::Store(value / divide);
//
// Neither side contracts a multiplication and an addition into one operation (-fmad=false,
// -ffp-contract=off). Pure functions.
#ifndef TESSERA_WORKER_COLLECTIVES_NCCL_KERNEL_MATH_H_
#define TESSERA_WORKER_COLLECTIVES_NCCL_KERNEL_MATH_H_

#include <cmath>
#include <cstdint>

#include "common/float_bits.h"
#include "worker/collectives/nccl_kernels.h"

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif

namespace tessera {

struct Float32Format {
  using Stored = float;
  TESSERA_HOST_DEVICE static float Load(float value) { return value; }
  TESSERA_HOST_DEVICE static float Store(float value) { return value; }
};
struct BFloat16Format {
  using Stored = uint16_t;
  TESSERA_HOST_DEVICE static float Load(uint16_t value) { return FloatFromBFloat16(value); }
  TESSERA_HOST_DEVICE static uint16_t Store(float value) { return BFloat16FromFloat(value); }
};
struct Float16Format {
  using Stored = uint16_t;
  TESSERA_HOST_DEVICE static float Load(uint16_t value) { return FloatFromFloat16(value); }
  TESSERA_HOST_DEVICE static uint16_t Store(float value) { return Float16FromFloat(value); }
};

// Calls `work` with the format of `dtype` and returns what it returns.
template <typename Work>
auto WithKernelFormat(KernelDType dtype, Work work) {
  if (dtype == KernelDType::kBFloat16) return work(BFloat16Format());
  if (dtype == KernelDType::kFloat16) return work(Float16Format());
  return work(Float32Format());
}

template <typename In, typename Out>
TESSERA_HOST_DEVICE typename Out::Stored CastElement(typename In::Stored in, float divide) {
  return Out::Store(In::Load(in) / divide);
}

template <typename In>
TESSERA_HOST_DEVICE float AverageElement(typename In::Stored in, float divide) {
  return In::Load(In::Store(In::Load(in) / divide));
}

struct AdamWElement {
  float parameter;
  float exp_avg;
  float exp_avg_sq;
};

TESSERA_HOST_DEVICE inline AdamWElement UpdateElement(const AdamWRun& run, float gradient,
                                                      AdamWElement old) {
  const float g = gradient * run.gradient_scale + old.parameter * run.added;
  const float m = old.exp_avg + (g - old.exp_avg) * run.weight1;
  const float v = old.exp_avg_sq * run.beta2 + run.weight2 * g * g;
  const float p = old.parameter * run.keep -
                  run.step_size * (m / (std::sqrt(v) / run.root_correction2 + run.eps));
  return {p, m, v};
}

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_NCCL_KERNEL_MATH_H_
