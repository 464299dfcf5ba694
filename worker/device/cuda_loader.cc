// The real CUDA and NCCL behind the seam. cudart is linked statically; it looks for the driver when
// it is first called, so this links and starts on machines that have none.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/device/cuda_api.h"

namespace tessera {
namespace {

static_assert(kNcclIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(kCudaSuccess == cudaSuccess);
static_assert(kCudaErrorMemoryAllocation == cudaErrorMemoryAllocation);
static_assert(kCudaErrorNotReady == cudaErrorNotReady);
static_assert(kNcclSuccess == ncclSuccess && kNcclInProgress == ncclInProgress);
static_assert(kNcclSystemError == ncclSystemError && kNcclRemoteError == ncclRemoteError);
static_assert(ncclFloat16 == 6 && ncclFloat32 == 7 && ncclBfloat16 == 9);  // NcclDataType

constexpr int kOldestNccl = 21900;  // ncclMemAlloc and ncclCommRegister

cudaStream_t Stream(CudaStreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(CudaEventHandle event) { return static_cast<cudaEvent_t>(event); }
ncclComm_t Comm(NcclComm comm) { return static_cast<ncclComm_t>(comm); }

// NCCL's functions, with the types that its header gives them.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclMemAlloc) mem_alloc;
  decltype(&ncclMemFree) mem_free;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclCommRegister) comm_register;
  decltype(&ncclCommDeregister) comm_deregister;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
};

// The functions behind a CudaApi have no object to carry this. Written once, before any is called.
Nccl nccl;

// Symbols that `library` lacks are added to `missing`.
Nccl Resolve(void* library, std::vector<std::string>& missing) {
  Nccl found = {};
  auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing.push_back(name);
  };
  resolve(found.get_version, "ncclGetVersion");
  resolve(found.get_error_string, "ncclGetErrorString");
  resolve(found.get_last_error, "ncclGetLastError");
  resolve(found.get_unique_id, "ncclGetUniqueId");
  resolve(found.mem_alloc, "ncclMemAlloc");
  resolve(found.mem_free, "ncclMemFree");
  resolve(found.comm_init_rank_config, "ncclCommInitRankConfig");
  resolve(found.comm_get_async_error, "ncclCommGetAsyncError");
  resolve(found.comm_abort, "ncclCommAbort");
  resolve(found.comm_register, "ncclCommRegister");
  resolve(found.comm_deregister, "ncclCommDeregister");
  resolve(found.group_start, "ncclGroupStart");
  resolve(found.group_end, "ncclGroupEnd");
  resolve(found.all_gather, "ncclAllGather");
  resolve(found.reduce_scatter, "ncclReduceScatter");
  return found;
}

int InitRank(NcclComm* comm, int ranks, const char* id, int rank) {
  ncclUniqueId unique_id;
  std::memcpy(unique_id.internal, id, kNcclIdBytes);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return nccl.comm_init_rank_config(reinterpret_cast<ncclComm_t*>(comm), ranks, unique_id, rank,
                                    &config);
}

void FillNccl(CudaApi* api) {
  api->nccl_error_string = [](int result) {
    return nccl.get_error_string(static_cast<ncclResult_t>(result));
  };
  api->nccl_last_error = [](NcclComm comm) { return nccl.get_last_error(Comm(comm)); };
  api->nccl_get_unique_id = [](char* id) -> int {
    ncclUniqueId unique_id;
    const ncclResult_t result = nccl.get_unique_id(&unique_id);
    if (result == ncclSuccess) std::memcpy(id, unique_id.internal, kNcclIdBytes);
    return result;
  };
  api->nccl_mem_alloc = [](void** memory, size_t bytes) -> int {
    return nccl.mem_alloc(memory, bytes);
  };
  api->nccl_mem_free = [](void* memory) -> int { return nccl.mem_free(memory); };
  api->nccl_comm_init_rank = InitRank;
  api->nccl_comm_get_async_error = [](NcclComm comm, int* result) -> int {
    ncclResult_t error = ncclSuccess;
    const ncclResult_t asked = nccl.comm_get_async_error(Comm(comm), &error);
    *result = error;
    return asked;
  };
  api->nccl_comm_abort = [](NcclComm comm) -> int { return nccl.comm_abort(Comm(comm)); };
  api->nccl_comm_register = [](NcclComm comm, void* memory, size_t bytes, void** handle) -> int {
    return nccl.comm_register(Comm(comm), memory, bytes, handle);
  };
  api->nccl_comm_deregister = [](NcclComm comm, void* handle) -> int {
    return nccl.comm_deregister(Comm(comm), handle);
  };
  api->nccl_group_start = []() -> int { return nccl.group_start(); };
  api->nccl_group_end = []() -> int { return nccl.group_end(); };
  api->nccl_all_gather = [](const void* send, void* receive, size_t send_numel, int data_type,
                            NcclComm comm, CudaStreamHandle stream) -> int {
    return nccl.all_gather(send, receive, send_numel, static_cast<ncclDataType_t>(data_type),
                           Comm(comm), Stream(stream));
  };
  api->nccl_reduce_scatter = [](const void* send, void* receive, size_t receive_numel,
                                int data_type, NcclComm comm, CudaStreamHandle stream) -> int {
    return nccl.reduce_scatter(send, receive, receive_numel, static_cast<ncclDataType_t>(data_type),
                               ncclSum, Comm(comm), Stream(stream));
  };
}

// Refused where a GPU sees the memory under another address than the host.
int RegisterHost(void* memory, size_t bytes) {
  const cudaError_t registered =
      cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (registered != cudaSuccess) return registered;
  void* seen = nullptr;
  cudaError_t result = cudaHostGetDevicePointer(&seen, memory, 0);
  if (result == cudaSuccess && seen != memory) result = cudaErrorNotSupported;
  if (result != cudaSuccess) cudaHostUnregister(memory);
  return result;
}

void FillCuda(CudaApi* api) {
  api->error_string = [](int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); };
  api->set_device = [](int device) -> int { return cudaSetDevice(device); };
  api->stream_create = [](CudaStreamHandle* stream) -> int {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream),
                                     cudaStreamNonBlocking);
  };
  api->stream_destroy = [](CudaStreamHandle stream) -> int {
    return cudaStreamDestroy(Stream(stream));
  };
  api->stream_wait_event = [](CudaStreamHandle stream, CudaEventHandle event) -> int {
    return cudaStreamWaitEvent(Stream(stream), Event(event), 0);
  };
  api->event_create = [](CudaEventHandle* event) -> int {
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDefault);
  };
  api->event_destroy = [](CudaEventHandle event) -> int { return cudaEventDestroy(Event(event)); };
  api->event_record = [](CudaEventHandle event, CudaStreamHandle stream) -> int {
    return cudaEventRecord(Event(event), Stream(stream));
  };
  api->event_query = [](CudaEventHandle event) -> int { return cudaEventQuery(Event(event)); };
  api->event_elapsed_ms = [](float* milliseconds, CudaEventHandle start,
                             CudaEventHandle end) -> int {
    return cudaEventElapsedTime(milliseconds, Event(start), Event(end));
  };
  api->memcpy_async = [](void* to, const void* from, size_t bytes, CudaStreamHandle stream) -> int {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream));
  };
  api->memset_async = [](void* memory, int byte, size_t bytes, CudaStreamHandle stream) -> int {
    return cudaMemsetAsync(memory, byte, bytes, Stream(stream));
  };
  api->host_register = RegisterHost;
  api->host_unregister = [](void* memory) -> int { return cudaHostUnregister(memory); };
  api->cast = LaunchCast;
  api->average = LaunchAverage;
  api->adamw = LaunchAdamW;
}

Mutex load_mutex;
CudaApi loaded_api ABSL_GUARDED_BY(load_mutex);
bool is_loaded ABSL_GUARDED_BY(load_mutex) = false;

}  // namespace

absl::Status LoadNccl(const CudaOptions& options, CudaApi* api) {
  std::vector<std::string> places;
  if (!options.nccl_library.empty()) {
    places.push_back(options.nccl_library);
  } else {
    places.push_back("libnccl.so.2");
    if (!options.cuda_home.empty())
      places.push_back(absl::StrCat(options.cuda_home, "/lib64/libnccl.so.2"));
    places.push_back("/usr/local/cuda/lib64/libnccl.so.2");
  }
  void* library = nullptr;
  std::vector<std::string> errors;
  for (const std::string& place : places) {
    library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    errors.push_back(dlerror());
  }
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("libnccl.so.2 not found; set TESSERA_NCCL_LIBRARY to its path (",
                     absl::StrJoin(errors, "; "), ")"));
  }
  // Never closed: it starts threads.
  std::vector<std::string> missing;
  const Nccl found = Resolve(library, missing);
  int version = 0;
  if (missing.empty() && found.get_version(&version) != ncclSuccess) version = 0;
  if (version < kOldestNccl) {
    return absl::FailedPreconditionError(absl::StrCat(
        "libnccl.so.2 is too old (version ", version, missing.empty() ? "" : ", without ",
        absl::StrJoin(missing, ", "), "); NCCL 2.19 or later is needed"));
  }
  nccl = found;
  FillNccl(api);
  return absl::OkStatus();
}

absl::StatusOr<int> CountGpus() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return absl::UnavailableError("no NVIDIA driver");
  }
  int count = 0;
  if (const cudaError_t result = cudaGetDeviceCount(&count); result != cudaSuccess || count == 0) {
    return absl::UnavailableError(
        absl::StrCat("no GPU (the NVIDIA driver says: ",
                     result == cudaSuccess ? "no device" : cudaGetErrorString(result), ")"));
  }
  return count;
}

absl::StatusOr<const CudaApi*> LoadCudaApi(const CudaOptions& options) {
  TESSERA_RETURN_IF_ERROR(CountGpus().status());
  MutexLock lock(load_mutex);
  if (!is_loaded) {
    TESSERA_RETURN_IF_ERROR(LoadNccl(options, &loaded_api));
    FillCuda(&loaded_api);
    is_loaded = true;
  }
  return &loaded_api;
}

}  // namespace tessera
