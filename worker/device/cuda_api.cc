#include "worker/device/cuda_api.h"

#include "absl/strings/str_cat.h"

namespace tessera {

int NcclDataType(KernelDType dtype) {
  switch (dtype) {
    case KernelDType::kFloat16:
      return 6;
    case KernelDType::kFloat32:
      return 7;
    case KernelDType::kBFloat16:
      return 9;
  }
  return -1;  // NCCL refuses it
}

int64_t KernelDTypeBytes(KernelDType dtype) { return dtype == KernelDType::kFloat32 ? 4 : 2; }

absl::Status CudaError(const CudaApi& api, int result, absl::string_view call, int device) {
  if (result == kCudaSuccess) return absl::OkStatus();
  const std::string message = absl::StrCat(call, " on GPU ", device, ": ", api.error_string(result),
                                           " (cudaError ", result, ")");
  if (result == kCudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status NcclError(const CudaApi& api, int result, absl::string_view call, int device,
                       NcclComm comm) {
  if (result == kNcclSuccess || result == kNcclInProgress) return absl::OkStatus();
  std::string message = absl::StrCat(call, " on GPU ", device, ": ", api.nccl_error_string(result),
                                     " (ncclResult ", result, ")");
  const char* last = api.nccl_last_error(comm);
  if (last != nullptr && *last != '\0') absl::StrAppend(&message, "; NCCL's last error: ", last);
  if (result == kNcclRemoteError || result == kNcclSystemError) {
    return absl::UnavailableError(message);
  }
  return absl::InternalError(message);
}

}  // namespace tessera
