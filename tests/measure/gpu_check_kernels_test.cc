#include "tests/measure/gpu_check_kernels.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::IsEmpty;

// What fails when `api` takes the fake's place; the checks' number where it is not null.
std::vector<std::string> Failures(const CudaApi& api, size_t* checks = nullptr) {
  std::vector<std::string> failures;
  const auto stream = *CudaStream::Create({.api = &api, .name = "check"});
  const auto all = CheckKernels(api, *stream, /*largest=*/9000);
  EXPECT_TRUE(all.ok()) << all.status();
  for (const KernelCheck& check : *all) {
    if (!check.equal) failures.push_back(check.name);
  }
  if (checks != nullptr) *checks = all->size();
  return failures;
}

TEST(GpuCheckKernelsTest, KernelsThatAreRightPass) {
  FakeCuda fake;
  fake.RequireDeviceMemory();
  size_t checks = 0;
  EXPECT_THAT(Failures(*fake.api(), &checks), IsEmpty());
  // Seven shapes: nine pairs of dtypes with two divisors, three dtypes stored and added, two
  // optimizers with two copies.
  EXPECT_EQ(checks, 7u * (9 * 2 + 3 * 2 + 2 * 2));
  EXPECT_THAT(fake.violations(), IsEmpty());
  EXPECT_EQ(fake.live(), 0);
}

const CudaApi* right = nullptr;  // the calls have no object to carry it

TEST(GpuCheckKernelsTest, AKernelThatMissesItsLastElementIsFound) {
  FakeCuda fake;
  right = fake.api();
  CudaApi wrong = *fake.api();
  wrong.cast = [](const CastRun& run, CudaStreamHandle stream) {
    CastRun less = run;
    --less.numel;
    return right->cast(less, stream);
  };
  const std::vector<std::string> failures = Failures(wrong);
  EXPECT_EQ(failures.size(), 7u * 9 * 2);
  for (const std::string& name : failures) EXPECT_TRUE(absl::StartsWith(name, "cast ")) << name;
}

TEST(GpuCheckKernelsTest, AKernelThatForgetsItsCopyOrItsShardIsFound) {
  FakeCuda fake;
  right = fake.api();
  CudaApi wrong = *fake.api();
  wrong.adamw = [](const AdamWRun& run, CudaStreamHandle stream) {
    AdamWRun less = run;
    less.copy = nullptr;
    return right->adamw(less, stream);
  };
  wrong.average = [](const AverageRun& run, CudaStreamHandle stream) {
    AverageRun less = run;
    less.accumulate = false;
    return right->average(less, stream);
  };
  const std::vector<std::string> failures = Failures(wrong);
  EXPECT_EQ(failures.size(), 7u * (3 + 4));
}

TEST(GpuCheckKernelsTest, FiguresCountTheBytesOfAPass) {
  FakeCuda fake;
  const auto stream = *CudaStream::Create({.api = fake.api(), .name = "check"});
  const auto figures = MeasureKernels(*fake.api(), *stream, 1000);
  ASSERT_TRUE(figures.ok()) << figures.status();
  // A quarter of a millisecond on the fake.
  EXPECT_EQ(figures->at(0), "cast float32 to bfloat16: 6000 bytes in 250 us, 0.024 GB/s");
  EXPECT_EQ(figures->at(1), "AdamW with a copy in bfloat16: 30000 bytes in 250 us, 0.12 GB/s");
}

}  // namespace
}  // namespace tessera
