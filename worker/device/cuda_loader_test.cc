#include "gtest/gtest.h"
#include "worker/device/cuda_api.h"
#include "worker/device/probe.h"

namespace tessera {
namespace {

TEST(CudaLoaderTest, SaysThatThereIsNoDriver) {
  const absl::StatusOr<int> gpus = CountGpus();
  if (gpus.ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(gpus.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(LoadCudaApi({}).status(), gpus.status());
  EXPECT_EQ(DescribeDevices(), std::string(gpus.status().message()) + ": computing on the CPU");
}

TEST(CudaLoaderTest, AJobForGpusEndsWithoutADriver) {
  if (CountGpus().ok()) GTEST_SKIP() << "this machine has a GPU";
  const absl::Status status = OpenGpu(0, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "the job's device is cuda: no NVIDIA driver; give the job device auto or cpu");
}

TEST(CudaLoaderTest, NamesTheLibraryThatIsNotThere) {
  CudaApi api;
  const absl::Status status = LoadNccl({.nccl_library = "/nowhere/libnccl.so.2"}, &api);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("/nowhere/libnccl.so.2"), std::string::npos)
      << status;
  EXPECT_EQ(api.nccl_group_start, nullptr);
}

TEST(CudaLoaderTest, RefusesALibraryThatIsNotNccl) {
  CudaApi api;
  const absl::Status status = LoadNccl({.nccl_library = "libm.so.6"}, &api);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("ncclReduceScatter"), std::string::npos) << status;
}

TEST(CudaLoaderTest, OpensNcclWithoutADriver) {
  CudaApi api;
  const absl::Status status = LoadNccl({}, &api);
  if (absl::IsUnavailable(status)) GTEST_SKIP() << status.message();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_STREQ(api.nccl_error_string(kNcclSuccess), "no error");
  EXPECT_EQ(api.nccl_group_start(), kNcclSuccess);
  EXPECT_EQ(api.nccl_group_end(), kNcclSuccess);
}

}  // namespace
}  // namespace tessera
