// In builds with CUDA and without, on machines with GPUs and without.
#include "worker/device/probe.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ProbeTest, AGpuThatIsNotThereIsRefusedWithAdvice) {
  const absl::Status status = OpenGpu(100'000, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      testing::MatchesRegex("the job's device is cuda: .*; give the job device auto or cpu"));
}

}  // namespace
}  // namespace tessera
