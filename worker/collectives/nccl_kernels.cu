#include <algorithm>

#include "worker/collectives/nccl_kernel_math.h"
#include "worker/collectives/nccl_kernels.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 4096;  // the rest is done by the stride
constexpr int kPack = 8;           // elements that a thread takes at once

// kPack elements in accesses of 16 bytes: one for the 16-bit formats, two for float32.
template <typename Stored>
struct alignas(16) Pack {
  Stored values[kPack];

  __device__ void Load(const Stored* from) {
#pragma unroll
    for (size_t word = 0; word < sizeof(Pack) / sizeof(uint4); ++word) {
      reinterpret_cast<uint4*>(values)[word] = reinterpret_cast<const uint4*>(from)[word];
    }
  }
  __device__ void Store(Stored* to) const {
#pragma unroll
    for (size_t word = 0; word < sizeof(Pack) / sizeof(uint4); ++word) {
      reinterpret_cast<uint4*>(to)[word] = reinterpret_cast<const uint4*>(values)[word];
    }
  }
};

// The first `packs` x kPack elements by packs, the rest one by one.
template <typename Body>
__global__ void ForEach(int64_t packs, int64_t numel, Body body) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t pack = thread; pack < packs; pack += stride) body.DoPack(pack * kPack);
  for (int64_t i = packs * kPack + thread; i < numel; i += stride) body.DoOne(i);
}

template <typename In, typename Out>
struct CastBody {
  const typename In::Stored* in;
  typename Out::Stored* out;
  float divide;

  __device__ void DoOne(int64_t i) const { out[i] = CastElement<In, Out>(in[i], divide); }
  __device__ void DoPack(int64_t i) const {
    Pack<typename In::Stored> from;
    Pack<typename Out::Stored> to;
    from.Load(in + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      to.values[k] = CastElement<In, Out>(from.values[k], divide);
    }
    to.Store(out + i);
  }
};

template <typename In, bool kAccumulate>
struct AverageBody {
  const typename In::Stored* in;
  float* shard;
  float divide;

  __device__ void DoOne(int64_t i) const {
    const float average = AverageElement<In>(in[i], divide);
    shard[i] = kAccumulate ? shard[i] + average : average;
  }
  __device__ void DoPack(int64_t i) const {
    Pack<typename In::Stored> from;
    Pack<float> to;
    from.Load(in + i);
    if (kAccumulate) to.Load(shard + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const float average = AverageElement<In>(from.values[k], divide);
      to.values[k] = kAccumulate ? to.values[k] + average : average;
    }
    to.Store(shard + i);
  }
};

template <typename Copy, bool kCopy>
struct AdamWBody {
  AdamWRun run;

  __device__ typename Copy::Stored* copy() const {
    return static_cast<typename Copy::Stored*>(run.copy);
  }
  __device__ void DoOne(int64_t i) const {
    const AdamWElement now =
        UpdateElement(run, run.gradient[i], {run.parameter[i], run.exp_avg[i], run.exp_avg_sq[i]});
    run.parameter[i] = now.parameter;
    run.exp_avg[i] = now.exp_avg;
    run.exp_avg_sq[i] = now.exp_avg_sq;
    if (kCopy) copy()[i] = Copy::Store(now.parameter);
  }
  __device__ void DoPack(int64_t i) const {
    Pack<float> gradient, parameter, exp_avg, exp_avg_sq;
    Pack<typename Copy::Stored> copied;
    gradient.Load(run.gradient + i);
    parameter.Load(run.parameter + i);
    exp_avg.Load(run.exp_avg + i);
    exp_avg_sq.Load(run.exp_avg_sq + i);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const AdamWElement now = UpdateElement(
          run, gradient.values[k], {parameter.values[k], exp_avg.values[k], exp_avg_sq.values[k]});
      parameter.values[k] = now.parameter;
      exp_avg.values[k] = now.exp_avg;
      exp_avg_sq.values[k] = now.exp_avg_sq;
      if (kCopy) copied.values[k] = Copy::Store(now.parameter);
    }
    parameter.Store(run.parameter + i);
    exp_avg.Store(run.exp_avg + i);
    exp_avg_sq.Store(run.exp_avg_sq + i);
    if (kCopy) copied.Store(copy() + i);
  }
};

bool Aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % alignof(uint4) == 0;
  });
}

template <typename Body>
int Launch(int64_t numel, bool aligned, const Body& body, void* stream) {
  if (numel == 0) return cudaSuccess;
  const int64_t packs = aligned ? numel / kPack : 0;
  const int64_t items = std::max(packs, numel - packs * kPack);
  const int64_t blocks = std::min<int64_t>((items + kThreads - 1) / kThreads, kMostBlocks);
  ForEach<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      packs, numel, body);
  return cudaGetLastError();
}

template <typename In, bool kAccumulate>
int LaunchAverageOf(const AverageRun& run, void* stream) {
  return Launch(run.numel, Aligned({run.in, run.shard}),
                AverageBody<In, kAccumulate>{static_cast<const typename In::Stored*>(run.in),
                                             run.shard, run.divide},
                stream);
}

}  // namespace

int LaunchCast(const CastRun& run, void* stream) {
  return WithKernelFormat(run.in_dtype, [&](auto in) {
    using In = decltype(in);
    return WithKernelFormat(run.out_dtype, [&](auto out) {
      using Out = decltype(out);
      return Launch(run.numel, Aligned({run.in, run.out}),
                    CastBody<In, Out>{static_cast<const typename In::Stored*>(run.in),
                                      static_cast<typename Out::Stored*>(run.out), run.divide},
                    stream);
    });
  });
}

int LaunchAverage(const AverageRun& run, void* stream) {
  return WithKernelFormat(run.in_dtype, [&](auto in) {
    using In = decltype(in);
    return run.accumulate ? LaunchAverageOf<In, true>(run, stream)
                          : LaunchAverageOf<In, false>(run, stream);
  });
}

int LaunchAdamW(const AdamWRun& run, void* stream) {
  const bool aligned =
      Aligned({run.gradient, run.parameter, run.exp_avg, run.exp_avg_sq, run.copy});
  if (run.copy == nullptr) {
    return Launch(run.numel, aligned, AdamWBody<Float32Format, false>{run}, stream);
  }
  return WithKernelFormat(run.copy_dtype, [&](auto copy) {
    return Launch(run.numel, aligned, AdamWBody<decltype(copy), true>{run}, stream);
  });
}

}  // namespace tessera
