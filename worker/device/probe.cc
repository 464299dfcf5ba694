#include "worker/device/probe.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

absl::Status NoGpu(absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("the job's device is cuda: ", why, "; give the job device auto or cpu"));
}

}  // namespace

#ifdef TESSERA_CUDA

std::string DescribeDevices() {
  const absl::StatusOr<int> gpus = CountGpus();
  if (!gpus.ok()) return absl::StrCat(gpus.status().message(), ": computing on the CPU");
  return absl::StrCat(*gpus, *gpus == 1 ? " GPU" : " GPUs",
                      " here, for jobs whose device is cuda: others compute on the CPU");
}

absl::StatusOr<const CudaApi*> OpenGpu(int index, const CudaOptions& options) {
  const absl::StatusOr<int> gpus = CountGpus();
  if (!gpus.ok()) return NoGpu(gpus.status().message());
  if (index >= *gpus) {
    return NoGpu(absl::StrCat("this rank takes GPU ", index, " of its host, which has ", *gpus));
  }
  const absl::StatusOr<const CudaApi*> api = LoadCudaApi(options);
  if (!api.ok()) return NoGpu(api.status().message());
  return *api;
}

#else

std::string DescribeDevices() { return ""; }

absl::StatusOr<const CudaApi*> OpenGpu(int /*index*/, const CudaOptions& /*options*/) {
  return NoGpu("this worker was built without CUDA");
}

#endif

}  // namespace tessera
