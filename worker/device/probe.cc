#include "worker/device/probe.h"

#ifdef TESSERA_CUDA
#include "absl/strings/str_cat.h"
#include "worker/device/cuda_api.h"
#endif

namespace tessera {

std::string DescribeDevices() {
#ifdef TESSERA_CUDA
  const absl::StatusOr<int> gpus = CountGpus();
  if (!gpus.ok()) return absl::StrCat(gpus.status().message(), ": computing on the CPU");
  return absl::StrCat(*gpus, *gpus == 1 ? " GPU" : " GPUs",
                      " here, not used yet: computing on the CPU");
#else
  return "";
#endif
}

}  // namespace tessera
