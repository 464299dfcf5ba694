// Holds the arithmetic that the GPU's kernels are compiled from against the CPU's own loops, bit
// for bit, where there is no GPU.
#include "worker/collectives/nccl_kernel_math.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/collectives/nccl_adamw.h"

namespace tessera {
namespace {

// Values of every magnitude and the borders of each format, with no pattern in their last bits.
std::vector<float> Samples() {
  std::vector<float> samples = {0.0f,
                                -0.0f,
                                65504.0f,
                                65519.0f,
                                65520.0f,
                                6.0e-8f,
                                2.9e-8f,
                                6.1e-5f,
                                1.0f,
                                1.001f,
                                3.4e38f,
                                -3.4e38f,
                                1.17e-38f,
                                1.0e-40f,
                                std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
  uint32_t state = 12345;
  for (int i = 0; i < 5000; ++i) {
    state = state * 1664525u + 1013904223u;
    samples.push_back(std::bit_cast<float>(state));
  }
  return samples;
}

template <typename Format>
void ExpectCastsLike(DType dtype) {
  const std::vector<float> in = Samples();
  std::vector<typename Format::Stored> expected(in.size());
  CastFloat32(in.data(), static_cast<int64_t>(in.size()), dtype, expected.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const auto got = CastElement<Float32Format, Format>(in[i], 1);
    EXPECT_EQ(std::memcmp(&got, &expected[i], sizeof(got)), 0) << "of " << in[i];
  }
}

TEST(NcclKernelMathTest, CastsAsTheCpuDoes) {
  ExpectCastsLike<BFloat16Format>(v1::BFLOAT16);
  ExpectCastsLike<Float16Format>(v1::FLOAT16);
}

template <typename Format>
void ExpectAveragesLike(DType dtype, bool accumulate) {
  std::vector<typename Format::Stored> sum;
  for (const float sample : Samples()) {
    if (!std::isnan(sample)) sum.push_back(Format::Store(sample));
  }
  const int64_t numel = static_cast<int64_t>(sum.size());
  std::vector<float> expected(sum.size(), 0.375f);
  const void* inputs[] = {sum.data()};
  ReduceSlice(inputs, numel,
              {.gradient_dtype = dtype,
               .reduce_dtype = dtype,
               .divide = {.before = 1, .after = 3},
               .accumulate = accumulate},
              expected.data());
  for (int64_t i = 0; i < numel; ++i) {
    const float average = AverageElement<Format>(sum[i], 3);
    const float got = accumulate ? 0.375f + average : average;
    EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(expected[i])) << i;
  }
}

TEST(NcclKernelMathTest, AveragesAsTheCpuDoes) {
  for (const bool accumulate : {false, true}) {
    ExpectAveragesLike<Float32Format>(v1::FLOAT32, accumulate);
    ExpectAveragesLike<BFloat16Format>(v1::BFLOAT16, accumulate);
    ExpectAveragesLike<Float16Format>(v1::FLOAT16, accumulate);
  }
}

template <typename Copy>
void ExpectUpdatesLike(OptimizerKind kind, DType copy_dtype, bool decay) {
  constexpr int kNumel = 1000;
  std::vector<float> gradient(kNumel), parameter(kNumel), m(kNumel), v(kNumel);
  for (int i = 0; i < kNumel; ++i) {
    gradient[i] = std::sin(static_cast<float>(i));
    parameter[i] = std::cos(static_cast<float>(i * 3));
    m[i] = gradient[i] * 0.7f;
    v[i] = parameter[i] * parameter[i];
  }
  std::vector<float> new_parameter = parameter, new_m = m, new_v = v;
  std::vector<uint16_t> copy(kNumel);
  const OptimizerOptions options = {.kind = kind};
  const UpdateStep step = {.update = 7, .learning_rate = 3e-3, .gradient_scale = 0.3};
  const UpdateRun arrays = {.numel = kNumel,
                            .decay = decay,
                            .gradient = gradient.data(),
                            .parameter = new_parameter.data(),
                            .state = {new_m.data(), new_v.data()},
                            .copy = copy.data(),
                            .copy_dtype = copy_dtype};
  const AdamWRun run = AdamWRunOf(options, step, arrays);
  UpdateElements(options, step, arrays);
  for (int i = 0; i < kNumel; ++i) {
    const AdamWElement got = UpdateElement(run, gradient[i], {parameter[i], m[i], v[i]});
    EXPECT_EQ(got.parameter, new_parameter[i]) << i;
    EXPECT_EQ(got.exp_avg, new_m[i]) << i;
    EXPECT_EQ(got.exp_avg_sq, new_v[i]) << i;
    EXPECT_EQ(Copy::Store(got.parameter), copy[i]) << i;
  }
}

TEST(NcclKernelMathTest, UpdatesAsTheCpuDoes) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam}) {
    for (const bool decay : {false, true}) {
      ExpectUpdatesLike<BFloat16Format>(kind, v1::BFLOAT16, decay);
      ExpectUpdatesLike<Float16Format>(kind, v1::FLOAT16, decay);
    }
  }
}

}  // namespace
}  // namespace tessera
