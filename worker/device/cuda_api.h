// The one seam to CUDA and NCCL: exactly the calls that Tessera makes, as pointers, so that tests
// put a fake in their place (worker/device/fake_cuda_api.h) and a program starts where neither a
// driver nor libnccl is.
//
//   TESSERA_ASSIGN_OR_RETURN(const CudaApi* api, LoadCudaApi({}));
//   if (const int result = api->event_record(event, stream); result != kCudaSuccess) {
//     return CudaError(*api, result, "cudaEventRecord", device);
//   }
//
// Includes nothing of CUDA: handles are opaque pointers, and results are ints, a cudaError_t from
// CUDA's calls and kernels and an ncclResult_t from NCCL's. Each member is named after its call,
// whose manual says the rest.
//
// Thread-safety: the table is constant and lives for ever; the calls are as safe as CUDA's and
// NCCL's own. LoadCudaApi may be called from any thread.
#ifndef TESSERA_WORKER_DEVICE_CUDA_API_H_
#define TESSERA_WORKER_DEVICE_CUDA_API_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/nccl_kernels.h"

namespace tessera {

using CudaStreamHandle = void*;  // cudaStream_t
using CudaEventHandle = void*;   // cudaEvent_t
using NcclComm = void*;          // ncclComm_t

inline constexpr int kNcclIdBytes = 128;  // of an ncclUniqueId

// The results that somebody tells apart (held against CUDA's and NCCL's headers where these are).
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaErrorMemoryAllocation = 2;
inline constexpr int kCudaErrorNotReady = 600;
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclSystemError = 2;
inline constexpr int kNcclRemoteError = 6;
inline constexpr int kNcclInProgress = 7;

// ncclDataType_t of a dtype that kernels know.
int NcclDataType(KernelDType dtype);
int64_t KernelDTypeBytes(KernelDType dtype);

struct CudaApi {
  // The CUDA runtime.
  const char* (*error_string)(int error) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*stream_create)(CudaStreamHandle* stream) = nullptr;  // non-blocking: ignores stream 0
  int (*stream_destroy)(CudaStreamHandle stream) = nullptr;
  int (*stream_wait_event)(CudaStreamHandle stream, CudaEventHandle event) = nullptr;
  int (*event_create)(CudaEventHandle* event) = nullptr;  // with timing
  int (*event_destroy)(CudaEventHandle event) = nullptr;
  int (*event_record)(CudaEventHandle event, CudaStreamHandle stream) = nullptr;
  int (*event_query)(CudaEventHandle event) = nullptr;
  int (*event_elapsed_ms)(float* milliseconds, CudaEventHandle start,
                          CudaEventHandle end) = nullptr;
  int (*memcpy_async)(void* to, const void* from, size_t bytes,
                      CudaStreamHandle stream) = nullptr;  // either side host or device
  int (*memset_async)(void* memory, int byte, size_t bytes, CudaStreamHandle stream) = nullptr;
  // So that kernels may use the host's memory by its own address.
  int (*host_register)(void* memory, size_t bytes) = nullptr;
  int (*host_unregister)(void* memory) = nullptr;
  // Our kernels.
  int (*cast)(const CastRun& run, CudaStreamHandle stream) = nullptr;
  int (*average)(const AverageRun& run, CudaStreamHandle stream) = nullptr;
  int (*adamw)(const AdamWRun& run, CudaStreamHandle stream) = nullptr;
  // NCCL. `id` is kNcclIdBytes long; communicators are non-blocking.
  const char* (*nccl_error_string)(int result) = nullptr;
  const char* (*nccl_last_error)(NcclComm comm) = nullptr;
  int (*nccl_get_unique_id)(char* id) = nullptr;
  int (*nccl_mem_alloc)(void** memory, size_t bytes) = nullptr;
  int (*nccl_mem_free)(void* memory) = nullptr;
  int (*nccl_comm_init_rank)(NcclComm* comm, int ranks, const char* id, int rank) = nullptr;
  int (*nccl_comm_get_async_error)(NcclComm comm, int* result) = nullptr;
  int (*nccl_comm_abort)(NcclComm comm) = nullptr;
  int (*nccl_comm_register)(NcclComm comm, void* memory, size_t bytes, void** handle) = nullptr;
  int (*nccl_comm_deregister)(NcclComm comm, void* handle) = nullptr;
  int (*nccl_group_start)() = nullptr;
  int (*nccl_group_end)() = nullptr;
  int (*nccl_all_gather)(const void* send, void* receive, size_t send_numel, int data_type,
                         NcclComm comm, CudaStreamHandle stream) = nullptr;
  int (*nccl_reduce_scatter)(const void* send, void* receive, size_t receive_numel, int data_type,
                             NcclComm comm, CudaStreamHandle stream) = nullptr;  // sum
};

// A result as a status: "CALL on GPU 3: what CUDA says (cudaError 700)". RESOURCE_EXHAUSTED: out of
// memory; INTERNAL: anything else. OK for success.
absl::Status CudaError(const CudaApi& api, int result, absl::string_view call, int device);

// "CALL on GPU 3: what NCCL says (ncclResult 6); NCCL's last error: ...". UNAVAILABLE: a peer or
// the network between is gone; INTERNAL: anything else. OK for success and for "in progress".
// `comm` may be null.
absl::Status NcclError(const CudaApi& api, int result, absl::string_view call, int device,
                       NcclComm comm);

struct CudaOptions {  // from TESSERA_NCCL_LIBRARY and CUDA_HOME (common/process_env.h)
  // Where libnccl.so.2 is. "": the loader's path, then CUDA_HOME/lib64, then
  // /usr/local/cuda/lib64.
  std::string nccl_library = "";
  // "": not set.
  std::string cuda_home = "";
};

// NCCL's calls of `api`, from libnccl.so.2. UNAVAILABLE: it is not found (names the places);
// FAILED_PRECONDITION: it lacks a call or is older than 2.19. Exists in builds with CUDA only.
absl::Status LoadNccl(const CudaOptions& options, CudaApi* api);

// The machine's. UNAVAILABLE: no NVIDIA driver, no GPU, or no libnccl.so.2. After the first success
// every call gives the same. Exists in builds with CUDA only.
absl::StatusOr<const CudaApi*> LoadCudaApi(const CudaOptions& options);

// How many GPUs there are. UNAVAILABLE: no NVIDIA driver, or no GPU. Exists in builds with CUDA
// only.
absl::StatusOr<int> CountGpus();

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_API_H_
