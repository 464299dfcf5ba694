// The AdamW kernel as a program would call it: through the seam, on the stream that owns the
// shards, between a reduction and the next gather, writing the low-precision copy in its pass.
#include "worker/collectives/nccl_adamw.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/float_bits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/cuda_device.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kNumel = 37;  // no multiple of what a thread takes at once

// A unit's shard on the GPU.
struct Shard {
  std::vector<float> gradient = std::vector<float>(kNumel);
  std::vector<float> parameter = std::vector<float>(kNumel);
  std::vector<float> exp_avg = std::vector<float>(kNumel);
  std::vector<float> exp_avg_sq = std::vector<float>(kNumel);
  std::vector<uint16_t> copy = std::vector<uint16_t>(kNumel);

  Shard() {
    for (int64_t i = 0; i < kNumel; ++i) {
      gradient[i] = std::sin(static_cast<float>(i));
      parameter[i] = std::cos(static_cast<float>(3 * i));
      exp_avg[i] = 0.7f * gradient[i];
      exp_avg_sq[i] = parameter[i] * parameter[i];
    }
  }
  UpdateRun Run(DType copy_dtype) {
    return {.numel = kNumel,
            .decay = true,
            .gradient = gradient.data(),
            .parameter = parameter.data(),
            .state = {exp_avg.data(), exp_avg_sq.data()},
            .copy = copy_dtype == v1::FLOAT32 ? nullptr : copy.data(),
            .copy_dtype = copy_dtype == v1::FLOAT32 ? v1::BFLOAT16 : copy_dtype};
  }
};

constexpr UpdateStep kStep = {.update = 7, .learning_rate = 3e-3, .gradient_scale = 0.3};

// A GPU with a stream of its own for the optimizer and one that stands for the collectives'.
struct Gpu {
  FakeCuda fake;
  std::unique_ptr<CudaStream> optimizer = Stream("optimizer");
  std::unique_ptr<CudaStream> other = Stream("other");

  std::unique_ptr<CudaStream> Stream(const std::string& name) {
    return *CudaStream::Create({.api = fake.api(), .name = name});
  }
  void Touch(const CudaStream& stream, const std::vector<float>& memory, bool write,
             const std::string& label) {
    fake.Touch(stream.handle(), memory.data(), kNumel * 4, write, label);
  }
  // Reduces into the gradient shard on one stream, updates on another, gathers on the first. What
  // is left out is not ordered.
  void Step(Shard& shard, bool wait_for_reduction, bool publish) {
    Touch(*other, shard.gradient, true, "reduce");
    if (wait_for_reduction) {
      ASSERT_TRUE(optimizer->WaitFor(**CudaEvent::Record(*other)).ok());
    }
    const AdamWRun run = AdamWRunOf({}, kStep, shard.Run(v1::FLOAT32));
    ASSERT_EQ(fake.api()->adamw(run, optimizer->handle()), kCudaSuccess);
    if (publish) {
      ASSERT_TRUE(other->WaitFor(**CudaEvent::Record(*optimizer)).ok());
    }
    Touch(*other, shard.parameter, false, "gather");
    for (const CudaStream* stream : {optimizer.get(), other.get()}) {
      ASSERT_TRUE((*CudaEvent::Record(*stream))->Wait().ok());
    }
  }
};

TEST(NcclAdamWTest, UpdatesShardStateAndCopyAsTheCpuDoes) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam}) {
    for (const DType dtype : {v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
      Gpu gpu;
      Shard cpu, device;
      UpdateElements({.kind = kind}, kStep, cpu.Run(dtype));
      const AdamWRun run = AdamWRunOf({.kind = kind}, kStep, device.Run(dtype));
      ASSERT_EQ(gpu.fake.api()->adamw(run, gpu.optimizer->handle()), kCudaSuccess);
      ASSERT_TRUE((*CudaEvent::Record(*gpu.optimizer))->Wait().ok());
      EXPECT_EQ(device.parameter, cpu.parameter);
      EXPECT_EQ(device.exp_avg, cpu.exp_avg);
      EXPECT_EQ(device.exp_avg_sq, cpu.exp_avg_sq);
      EXPECT_EQ(device.copy, cpu.copy);
      for (int64_t i = 0; i < kNumel; ++i) {
        const uint16_t expected = dtype == v1::FLOAT32    ? 0
                                  : dtype == v1::BFLOAT16 ? BFloat16FromFloat(cpu.parameter[i])
                                                          : Float16FromFloat(cpu.parameter[i]);
        EXPECT_EQ(device.copy[i], expected);
      }
      EXPECT_THAT(gpu.fake.violations(), IsEmpty());
    }
  }
}

TEST(NcclAdamWTest, RunsBetweenTheReductionAndTheNextGather) {
  Shard shard;
  Gpu gpu;
  gpu.Step(shard, /*wait_for_reduction=*/true, /*publish=*/true);
  EXPECT_THAT(gpu.fake.violations(), IsEmpty());
}

TEST(NcclAdamWTest, AnUpdateBesideItsReductionOrGatherIsFound) {
  {
    Shard shard;
    Gpu gpu;
    gpu.Step(shard, /*wait_for_reduction=*/false, /*publish=*/true);
    // Either may come first.
    EXPECT_THAT(gpu.fake.violations(),
                ElementsAre(AnyOf(HasSubstr("the AdamW kernel reads what reduce writes"),
                                  HasSubstr("reduce writes what the AdamW kernel reads"))));
  }
  Shard shard;
  Gpu gpu;
  gpu.Step(shard, /*wait_for_reduction=*/true, /*publish=*/false);
  EXPECT_EQ(gpu.fake.violations().size(), 1u);
  EXPECT_THAT(gpu.fake.violations()[0], HasSubstr("the AdamW kernel"));
  EXPECT_THAT(gpu.fake.violations()[0], HasSubstr("gather"));
}

// The copy may be a slice of a slot that others still compute with: its lease comes first.
TEST(NcclAdamWTest, ACopyIntoASlotWaitsForTheSlotsLastUse) {
  for (const bool wait : {true, false}) {
    Shard shard;
    Gpu gpu;
    gpu.fake.Touch(gpu.other->handle(), shard.copy.data(), kNumel * 2, false, "compute");
    if (wait) {
      ASSERT_TRUE(gpu.optimizer->WaitFor(**CudaEvent::Record(*gpu.other)).ok());
    }
    const AdamWRun run = AdamWRunOf({}, kStep, shard.Run(v1::BFLOAT16));
    ASSERT_EQ(gpu.fake.api()->adamw(run, gpu.optimizer->handle()), kCudaSuccess);
    for (const CudaStream* stream : {gpu.optimizer.get(), gpu.other.get()}) {
      ASSERT_TRUE((*CudaEvent::Record(*stream))->Wait().ok());
    }
    EXPECT_EQ(gpu.fake.violations().empty(), wait);
  }
}

TEST(NcclAdamWTest, TouchesOnlyMemoryThatAGpuCan) {
  Shard shard;  // outlives the stream, which does its work late
  Gpu gpu;
  gpu.fake.RequireDeviceMemory();
  std::vector<std::unique_ptr<RegisteredMemory>> registered;
  for (std::vector<float>* array :
       {&shard.gradient, &shard.parameter, &shard.exp_avg, &shard.exp_avg_sq}) {
    registered.push_back(*RegisteredMemory::Create(gpu.fake.api(), 0, array->data(), kNumel * 4));
  }
  ASSERT_EQ(
      gpu.fake.api()->adamw(AdamWRunOf({}, kStep, shard.Run(v1::FLOAT32)), gpu.optimizer->handle()),
      kCudaSuccess);
  EXPECT_THAT(gpu.fake.violations(), IsEmpty());
  ASSERT_EQ(gpu.fake.api()->adamw(AdamWRunOf({}, kStep, shard.Run(v1::BFLOAT16)),
                                  gpu.optimizer->handle()),
            kCudaSuccess);
  EXPECT_THAT(gpu.fake.violations(),
              ElementsAre("the AdamW kernel touches memory that the GPU cannot"));
}

// Everything that an update on a GPU calls, as far as it goes.
absl::Status Update(FakeCuda& fake, Shard& shard) {
  auto stream = CudaStream::Create({.api = fake.api(), .name = "optimizer"});
  if (!stream.ok()) return stream.status();
  auto registered = RegisteredMemory::Create(fake.api(), 0, shard.parameter.data(), kNumel * 4);
  if (!registered.ok()) return registered.status();
  const AdamWRun run = AdamWRunOf({}, kStep, shard.Run(v1::BFLOAT16));
  if (absl::Status status =
          (*stream)->Error(fake.api()->adamw(run, (*stream)->handle()), "the AdamW kernel");
      !status.ok()) {
    return status;
  }
  auto done = CudaEvent::Record(**stream);
  if (!done.ok()) return done.status();
  return (*done)->Wait();
}

TEST(NcclAdamWTest, EveryCallThatFailsIsNamedAndNothingLeaks) {
  std::vector<std::string> calls;
  {
    FakeCuda fake;
    Shard shard;
    ASSERT_TRUE(Update(fake, shard).ok());
    calls = fake.calls();
    EXPECT_EQ(fake.live(), 0);
  }
  int named = 0;
  for (int number = 0; number < static_cast<int>(calls.size()); ++number) {
    SCOPED_TRACE(calls[number]);
    FakeCuda fake;
    fake.FailCall(number);
    Shard shard;
    const Shard before;
    const absl::Status status = Update(fake, shard);
    const bool frees = calls[number] == "cudaEventDestroy" ||
                       calls[number] == "cudaStreamDestroy" ||
                       calls[number] == "cudaHostUnregister";
    EXPECT_EQ(status.ok(), frees);
    if (!frees) {
      ++named;
      EXPECT_THAT(std::string(status.message()), HasSubstr(calls[number]));
      EXPECT_THAT(std::string(status.message()), HasSubstr("on GPU 0"));
    }
    // A kernel that was not launched has changed nothing.
    if (calls[number] == "the AdamW kernel") {
      EXPECT_EQ(shard.parameter, before.parameter);
      EXPECT_EQ(shard.copy, before.copy);
    }
    EXPECT_EQ(fake.live(), 0);
  }
  EXPECT_EQ(named, 8);
}

}  // namespace
}  // namespace tessera
