#include "tests/measure/gpu_check_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/collectives/nccl_adamw.h"
#include "worker/collectives/nccl_kernel_math.h"
#include "worker/optimizer.h"

namespace tessera {
namespace {

constexpr KernelDType kDTypes[] = {KernelDType::kFloat32, KernelDType::kBFloat16,
                                   KernelDType::kFloat16};

std::string Name(KernelDType dtype) {
  if (dtype == KernelDType::kFloat32) return "float32";
  return dtype == KernelDType::kBFloat16 ? "bfloat16" : "float16";
}

// Memory of the GPU. NCCL's, since the seam has no other.
class DeviceBuffer {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Create(const CudaApi& api,
                                                              const CudaStream& stream,
                                                              int64_t bytes) {
    void* memory = nullptr;
    TESSERA_RETURN_IF_ERROR(NcclError(api, api.nccl_mem_alloc(&memory, bytes), "ncclMemAlloc",
                                      stream.options().device, nullptr));
    return std::unique_ptr<DeviceBuffer>(new DeviceBuffer(api, stream, memory));
  }
  ~DeviceBuffer() { api_.nccl_mem_free(memory_); }

  char* data() const { return static_cast<char*>(memory_); }
  absl::Status Put(const std::vector<char>& host) const {
    return Copy(memory_, host.data(), host.size());
  }
  absl::StatusOr<std::vector<char>> Get(int64_t bytes) const {
    std::vector<char> host(bytes);
    TESSERA_RETURN_IF_ERROR(Copy(host.data(), memory_, bytes));
    return host;
  }

 private:
  DeviceBuffer(const CudaApi& api, const CudaStream& stream, void* memory)
      : api_(api), stream_(stream), memory_(memory) {}
  absl::Status Copy(void* to, const void* from, size_t bytes) const {
    TESSERA_RETURN_IF_ERROR(
        stream_.Error(api_.memcpy_async(to, from, bytes, stream_.handle()), "cudaMemcpyAsync"));
    TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEvent> done, CudaEvent::Record(stream_));
    return done->Wait();
  }

  const CudaApi& api_;
  const CudaStream& stream_;
  void* const memory_;
};

// Values of every magnitude, but no NaN: its bits are nobody's promise.
std::vector<float> Samples(int64_t numel) {
  std::vector<float> samples = {0.0f, -0.0f,  65504.0f, 65520.0f,  6.0e-8f,  2.9e-8f,
                                1.0f, 1.001f, 3.4e38f,  1.17e-38f, 1.0e-40f, -3.4e38f};
  uint32_t state = 12345;
  while (static_cast<int64_t>(samples.size()) < numel) {
    state = state * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>(state);
    if (!std::isnan(value)) samples.push_back(value);
  }
  samples.resize(numel);
  return samples;
}

template <typename T>
std::vector<char> BytesOf(const std::vector<T>& values) {
  const char* begin = reinterpret_cast<const char*>(values.data());
  return std::vector<char>(begin, begin + values.size() * sizeof(T));
}

// `values` as `dtype`.
std::vector<char> Encode(const std::vector<float>& values, KernelDType dtype) {
  return WithKernelFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    std::vector<typename Format::Stored> stored;
    for (const float value : values) stored.push_back(Format::Store(value));
    return BytesOf(stored);
  });
}

// A kernel's elements begin `offset` elements into each buffer, so that it is aligned or not.
struct Shape {
  int64_t numel;
  int64_t offset;

  std::string Text() const { return absl::StrCat(", ", numel, " elements from offset ", offset); }
};

absl::StatusOr<KernelCheck> CheckCast(const CudaApi& api, const CudaStream& stream,
                                      KernelDType in_dtype, KernelDType out_dtype, float divide,
                                      Shape shape) {
  const int64_t numel = shape.numel + shape.offset;
  const std::vector<char> in = Encode(Samples(numel), in_dtype);
  const int64_t out_bytes = numel * KernelDTypeBytes(out_dtype);
  std::vector<char> expected(out_bytes, '\x5a');
  TESSERA_ASSIGN_OR_RETURN(const auto from,
                           DeviceBuffer::Create(api, stream, static_cast<int64_t>(in.size())));
  TESSERA_ASSIGN_OR_RETURN(const auto to, DeviceBuffer::Create(api, stream, out_bytes));
  TESSERA_RETURN_IF_ERROR(from->Put(in));
  TESSERA_RETURN_IF_ERROR(to->Put(expected));
  const CastRun run = {.in = from->data() + shape.offset * KernelDTypeBytes(in_dtype),
                       .in_dtype = in_dtype,
                       .numel = shape.numel,
                       .divide = divide,
                       .out = to->data() + shape.offset * KernelDTypeBytes(out_dtype),
                       .out_dtype = out_dtype};
  TESSERA_RETURN_IF_ERROR(stream.Error(api.cast(run, stream.handle()), "the cast kernel"));
  WithKernelFormat(in_dtype, [&](auto in_format) {
    WithKernelFormat(out_dtype, [&](auto out_format) {
      using In = decltype(in_format);
      using Out = decltype(out_format);
      for (int64_t i = shape.offset; i < numel; ++i) {
        reinterpret_cast<typename Out::Stored*>(expected.data())[i] = CastElement<In, Out>(
            reinterpret_cast<const typename In::Stored*>(in.data())[i], divide);
      }
    });
  });
  TESSERA_ASSIGN_OR_RETURN(const std::vector<char> got, to->Get(out_bytes));
  return KernelCheck{absl::StrCat("cast ", Name(in_dtype), " to ", Name(out_dtype), ", divided by ",
                                  divide, shape.Text()),
                     got == expected};
}

absl::StatusOr<KernelCheck> CheckAverage(const CudaApi& api, const CudaStream& stream,
                                         KernelDType dtype, bool accumulate, Shape shape) {
  const int64_t numel = shape.numel + shape.offset;
  const std::vector<char> in = Encode(Samples(numel), dtype);
  std::vector<float> shard(numel, 0.375f);
  TESSERA_ASSIGN_OR_RETURN(const auto from,
                           DeviceBuffer::Create(api, stream, static_cast<int64_t>(in.size())));
  TESSERA_ASSIGN_OR_RETURN(const auto to, DeviceBuffer::Create(api, stream, numel * 4));
  TESSERA_RETURN_IF_ERROR(from->Put(in));
  TESSERA_RETURN_IF_ERROR(to->Put(BytesOf(shard)));
  const AverageRun run = {.in = from->data() + shape.offset * KernelDTypeBytes(dtype),
                          .in_dtype = dtype,
                          .numel = shape.numel,
                          .divide = 3,
                          .accumulate = accumulate,
                          .shard = reinterpret_cast<float*>(to->data()) + shape.offset};
  TESSERA_RETURN_IF_ERROR(stream.Error(api.average(run, stream.handle()), "the average kernel"));
  WithKernelFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    for (int64_t i = shape.offset; i < numel; ++i) {
      const float average =
          AverageElement<Format>(reinterpret_cast<const typename Format::Stored*>(in.data())[i], 3);
      shard[i] = accumulate ? shard[i] + average : average;
    }
  });
  TESSERA_ASSIGN_OR_RETURN(const std::vector<char> got, to->Get(numel * 4));
  return KernelCheck{
      absl::StrCat(accumulate ? "average added, " : "average, ", Name(dtype), shape.Text()),
      got == BytesOf(shard)};
}

// Gradient, parameter and the two moments, one array after the other, each `numel` long.
std::vector<float> AdamWArrays(int64_t numel) {
  std::vector<float> arrays(4 * numel);
  for (int64_t i = 0; i < numel; ++i) {
    arrays[i] = std::sin(static_cast<float>(i));
    arrays[numel + i] = std::cos(static_cast<float>(3 * i));
    arrays[2 * numel + i] = 0.7f * arrays[i];
    arrays[3 * numel + i] = arrays[numel + i] * arrays[numel + i];
  }
  return arrays;
}

UpdateRun RunOf(float* arrays, uint16_t* copy, DType copy_dtype, int64_t numel, Shape shape) {
  return {.numel = shape.numel,
          .decay = true,
          .gradient = arrays + shape.offset,
          .parameter = arrays + numel + shape.offset,
          .state = {arrays + 2 * numel + shape.offset, arrays + 3 * numel + shape.offset},
          .copy = copy + shape.offset,
          .copy_dtype = copy_dtype};
}

absl::StatusOr<KernelCheck> CheckAdamW(const CudaApi& api, const CudaStream& stream,
                                       OptimizerKind kind, DType copy_dtype, Shape shape) {
  const OptimizerOptions options = {.kind = kind};
  const UpdateStep step = {.update = 7, .learning_rate = 3e-3, .gradient_scale = 0.3};
  const int64_t numel = (shape.numel + shape.offset + 7) / 8 * 8;
  std::vector<float> arrays = AdamWArrays(numel);
  std::vector<uint16_t> copy(numel, 0x5a5a);
  TESSERA_ASSIGN_OR_RETURN(const auto on_gpu, DeviceBuffer::Create(api, stream, 4 * numel * 4));
  TESSERA_ASSIGN_OR_RETURN(const auto copied, DeviceBuffer::Create(api, stream, numel * 2));
  TESSERA_RETURN_IF_ERROR(on_gpu->Put(BytesOf(arrays)));
  TESSERA_RETURN_IF_ERROR(copied->Put(BytesOf(copy)));
  const AdamWRun run =
      AdamWRunOf(options, step,
                 RunOf(reinterpret_cast<float*>(on_gpu->data()),
                       reinterpret_cast<uint16_t*>(copied->data()), copy_dtype, numel, shape));
  TESSERA_RETURN_IF_ERROR(stream.Error(api.adamw(run, stream.handle()), "the AdamW kernel"));
  UpdateElements(options, step, RunOf(arrays.data(), copy.data(), copy_dtype, numel, shape));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<char> got, on_gpu->Get(4 * numel * 4));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<char> got_copy, copied->Get(numel * 2));
  return KernelCheck{absl::StrCat(kind == OptimizerKind::kAdamW ? "AdamW" : "Adam",
                                  " with a copy in ", DTypeName(copy_dtype), shape.Text()),
                     got == BytesOf(arrays) && got_copy == BytesOf(copy)};
}

// Best of ten runs, in microseconds of the GPU.
absl::StatusOr<double> BestUs(const CudaStream& stream, absl::FunctionRef<int()> launch) {
  double best = 0;
  for (int i = 0; i < 10; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const auto begin, CudaEvent::Record(stream));
    TESSERA_RETURN_IF_ERROR(stream.Error(launch(), "a kernel"));
    TESSERA_ASSIGN_OR_RETURN(const auto end, CudaEvent::Record(stream));
    TESSERA_RETURN_IF_ERROR(end->Wait());
    TESSERA_ASSIGN_OR_RETURN(const double us, end->MicrosecondsSince(*begin));
    best = i == 0 ? us : std::min(best, us);
  }
  return best;
}

std::string Figure(absl::string_view what, int64_t bytes, double us) {
  return absl::StrCat(what, ": ", bytes, " bytes in ", us, " us, ",
                      static_cast<double>(bytes) / us / 1e3, " GB/s");
}

}  // namespace

absl::StatusOr<std::vector<KernelCheck>> CheckKernels(const CudaApi& api, const CudaStream& stream,
                                                      int64_t largest) {
  std::vector<KernelCheck> checks;
  for (const Shape& shape :
       {Shape{1, 0}, {7, 0}, {8, 0}, {4099, 0}, {4099, 1}, {largest, 0}, {largest, 1}}) {
    for (const KernelDType in : kDTypes) {
      for (const KernelDType out : kDTypes) {
        for (const float divide : {1.0f, 3.0f}) {
          TESSERA_ASSIGN_OR_RETURN(checks.emplace_back(),
                                   CheckCast(api, stream, in, out, divide, shape));
        }
      }
      for (const bool accumulate : {false, true}) {
        TESSERA_ASSIGN_OR_RETURN(checks.emplace_back(),
                                 CheckAverage(api, stream, in, accumulate, shape));
      }
    }
    for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam}) {
      for (const DType copy : {v1::BFLOAT16, v1::FLOAT16}) {
        TESSERA_ASSIGN_OR_RETURN(checks.emplace_back(), CheckAdamW(api, stream, kind, copy, shape));
      }
    }
  }
  return checks;
}

absl::StatusOr<std::vector<std::string>> MeasureKernels(const CudaApi& api,
                                                        const CudaStream& stream, int64_t numel) {
  TESSERA_ASSIGN_OR_RETURN(const auto arrays, DeviceBuffer::Create(api, stream, 4 * numel * 4));
  TESSERA_ASSIGN_OR_RETURN(const auto copied, DeviceBuffer::Create(api, stream, numel * 2));
  TESSERA_RETURN_IF_ERROR(stream.Error(
      api.memset_async(arrays->data(), 0, 4 * numel * 4, stream.handle()), "cudaMemsetAsync"));
  float* const floats = reinterpret_cast<float*>(arrays->data());
  const CastRun cast = {
      .in = floats, .numel = numel, .out = copied->data(), .out_dtype = KernelDType::kBFloat16};
  TESSERA_ASSIGN_OR_RETURN(const double cast_us,
                           BestUs(stream, [&] { return api.cast(cast, stream.handle()); }));
  const AdamWRun adamw = AdamWRunOf(
      {}, {.update = 1, .learning_rate = 1e-3},
      RunOf(floats, reinterpret_cast<uint16_t*>(copied->data()), v1::BFLOAT16, numel, {numel, 0}));
  TESSERA_ASSIGN_OR_RETURN(const double adamw_us,
                           BestUs(stream, [&] { return api.adamw(adamw, stream.handle()); }));
  return std::vector<std::string>{
      Figure("cast float32 to bfloat16", numel * 6, cast_us),
      // Four arrays read, three written, and the copy.
      Figure("AdamW with a copy in bfloat16", numel * (4 * 4 + 3 * 4 + 2), adamw_us)};
}

}  // namespace tessera
