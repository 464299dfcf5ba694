#include "worker/device/fake_cuda_api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "worker/collectives/nccl_kernel_math.h"
#include "worker/device/fake_cuda_world.h"

namespace tessera {

using fake_cuda::Comm;
using fake_cuda::FakeEvent;
using fake_cuda::kFakeCudaError;
using fake_cuda::kFakeNcclError;
using fake_cuda::Op;
using fake_cuda::Recording;
using fake_cuda::Region;
using fake_cuda::Stream;

namespace {

FakeCuda::World* world = nullptr;  // the calls have no object to carry it
thread_local int current_device = 0;

void FillCuda(CudaApi& api) {
  api.error_string = [](int) { return "a fake failure"; };
  api.set_device = [](int device) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaSetDevice")) return kFakeCudaError;
    current_device = device;
    return kCudaSuccess;
  };
  api.stream_create = [](CudaStreamHandle* stream) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaStreamCreateWithFlags")) return kFakeCudaError;
    *stream = *world->streams.insert(new Stream{world->next_actor++, current_device}).first;
    return kCudaSuccess;
  };
  api.stream_destroy = [](CudaStreamHandle handle) {
    MutexLock lock(world->mutex);
    const bool fail = world->Enter("cudaStreamDestroy");
    world->Pump();
    Stream* stream = world->Find(handle);
    world->streams.erase(stream);
    delete stream;
    return fail ? kFakeCudaError : kCudaSuccess;
  };
  api.stream_wait_event = [](CudaStreamHandle stream, CudaEventHandle event) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaStreamWaitEvent")) return kFakeCudaError;
    Op op = {.label = "wait", .host = {}};
    op.wait_for = static_cast<FakeEvent*>(event)->recording;
    if (op.wait_for != nullptr) world->Enqueue(world->Find(stream), std::move(op));
    return kCudaSuccess;
  };
  api.event_create = [](CudaEventHandle* event) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaEventCreateWithFlags")) return kFakeCudaError;
    *event = *world->events.insert(new FakeEvent()).first;
    return kCudaSuccess;
  };
  api.event_destroy = [](CudaEventHandle handle) {
    MutexLock lock(world->mutex);
    const bool fail = world->Enter("cudaEventDestroy");
    FakeEvent* event = static_cast<FakeEvent*>(handle);
    world->events.erase(event);
    delete event;
    return fail ? kFakeCudaError : kCudaSuccess;
  };
  api.event_record = [](CudaEventHandle event, CudaStreamHandle stream) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaEventRecord")) return kFakeCudaError;
    auto recording = std::make_shared<Recording>();
    recording->device = world->Find(stream)->device;
    static_cast<FakeEvent*>(event)->recording = recording;
    world->Enqueue(world->Find(stream), {.label = "record", .host = {}, .record = recording});
    return kCudaSuccess;
  };
  api.event_query = [](CudaEventHandle event) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaEventQuery")) return kFakeCudaError;
    return world->EventQuery(static_cast<FakeEvent*>(event));
  };
  api.event_elapsed_ms = [](float* milliseconds, CudaEventHandle, CudaEventHandle) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaEventElapsedTime")) return kFakeCudaError;
    *milliseconds = 0.25f;
    return kCudaSuccess;
  };
}

// `device_regions`: those of `regions` that the GPU itself has to reach.
int EnqueueWork(const char* label, CudaStreamHandle stream, std::vector<Region> regions,
                const std::vector<Region>& device_regions, std::function<void()> run) {
  MutexLock lock(world->mutex);
  if (world->Enter(label)) return kFakeCudaError;
  world->CheckMemory(device_regions, label);
  world->Enqueue(
      world->Find(stream),
      {.label = label, .host = {}, .regions = std::move(regions), .run = std::move(run)});
  return kCudaSuccess;
}

Region Read(const void* memory, int64_t bytes) {
  return {static_cast<const char*>(memory), bytes, false};
}
Region Write(const void* memory, int64_t bytes) {
  return {static_cast<const char*>(memory), bytes, true};
}

void RunAdamW(const AdamWRun& run) {
  for (int64_t i = 0; i < run.numel; ++i) {
    const AdamWElement now =
        UpdateElement(run, run.gradient[i], {run.parameter[i], run.exp_avg[i], run.exp_avg_sq[i]});
    run.parameter[i] = now.parameter;
    run.exp_avg[i] = now.exp_avg;
    run.exp_avg_sq[i] = now.exp_avg_sq;
    if (run.copy == nullptr) continue;
    WithKernelFormat(run.copy_dtype, [&](auto copy) {
      using Copy = decltype(copy);
      static_cast<typename Copy::Stored*>(run.copy)[i] = Copy::Store(now.parameter);
    });
  }
}

void FillKernels(CudaApi& api) {
  api.memcpy_async = [](void* to, const void* from, size_t bytes, CudaStreamHandle stream) {
    const int64_t length = static_cast<int64_t>(bytes);
    return EnqueueWork("cudaMemcpyAsync", stream, {Read(from, length), Write(to, length)}, {},
                       [=] { std::memcpy(to, from, bytes); });
  };
  api.memset_async = [](void* memory, int byte, size_t bytes, CudaStreamHandle stream) {
    const std::vector<Region> regions = {Write(memory, static_cast<int64_t>(bytes))};
    return EnqueueWork("cudaMemsetAsync", stream, regions, regions,
                       [=] { std::memset(memory, byte, bytes); });
  };
  api.host_register = [](void* memory, size_t bytes) {
    MutexLock lock(world->mutex);
    if (world->Enter("cudaHostRegister")) return kFakeCudaError;
    if (!world->registered.emplace(memory, static_cast<int64_t>(bytes)).second) {
      world->Violate("host memory is registered twice");
    }
    return kCudaSuccess;
  };
  api.host_unregister = [](void* memory) {
    MutexLock lock(world->mutex);
    const bool fail = world->Enter("cudaHostUnregister");
    if (world->registered.erase(memory) == 0) world->Violate("cudaHostUnregister of nothing");
    return fail ? kFakeCudaError : kCudaSuccess;
  };
  api.cast = [](const CastRun& run, CudaStreamHandle stream) {
    const std::vector<Region> regions = {
        Read(run.in, run.numel * KernelDTypeBytes(run.in_dtype)),
        Write(run.out, run.numel * KernelDTypeBytes(run.out_dtype))};
    return EnqueueWork("the cast kernel", stream, regions, regions, [run] {
      WithKernelFormat(run.in_dtype, [&](auto in) {
        WithKernelFormat(run.out_dtype, [&](auto out) {
          using In = decltype(in);
          using Out = decltype(out);
          for (int64_t i = 0; i < run.numel; ++i) {
            static_cast<typename Out::Stored*>(run.out)[i] = CastElement<In, Out>(
                static_cast<const typename In::Stored*>(run.in)[i], run.divide);
          }
        });
      });
    });
  };
  api.average = [](const AverageRun& run, CudaStreamHandle stream) {
    const std::vector<Region> regions = {Read(run.in, run.numel * KernelDTypeBytes(run.in_dtype)),
                                         Write(run.shard, run.numel * 4)};
    return EnqueueWork("the average kernel", stream, regions, regions, [run] {
      WithKernelFormat(run.in_dtype, [&](auto in) {
        using In = decltype(in);
        for (int64_t i = 0; i < run.numel; ++i) {
          const float average =
              AverageElement<In>(static_cast<const typename In::Stored*>(run.in)[i], run.divide);
          run.shard[i] = run.accumulate ? run.shard[i] + average : average;
        }
      });
    });
  };
  api.adamw = [](const AdamWRun& run, CudaStreamHandle stream) {
    const int64_t bytes = run.numel * 4;
    std::vector<Region> regions = {Read(run.gradient, bytes), Write(run.parameter, bytes),
                                   Write(run.exp_avg, bytes), Write(run.exp_avg_sq, bytes)};
    if (run.copy != nullptr) {
      regions.push_back(Write(run.copy, run.numel * KernelDTypeBytes(run.copy_dtype)));
    }
    return EnqueueWork("the AdamW kernel", stream, regions, regions, [run] { RunAdamW(run); });
  };
}

int InitRank(NcclComm* comm, int ranks, const char* id, int rank) {
  MutexLock lock(world->mutex);
  if (world->Enter("ncclCommInitRankConfig")) return kFakeNcclError;
  Comm* made = new Comm{std::string(id, kNcclIdBytes), ranks, rank};
  *comm = *world->comms.insert(made).first;
  ++world->joined[made->id];
  return kNcclInProgress;
}

void FillNccl(CudaApi& api) {
  api.nccl_error_string = [](int) { return "a fake failure"; };
  api.nccl_last_error = [](NcclComm) { return "what NCCL remembers"; };
  api.nccl_get_unique_id = [](char* id) {
    MutexLock lock(world->mutex);
    if (world->Enter("ncclGetUniqueId")) return kFakeNcclError;
    std::memset(id, 0, kNcclIdBytes);
    id[0] = static_cast<char>(++world->next_id);
    return kNcclSuccess;
  };
  api.nccl_mem_alloc = [](void** memory, size_t bytes) {
    MutexLock lock(world->mutex);
    if (world->Enter("ncclMemAlloc")) return kFakeNcclError;
    *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    world->memory.emplace(*memory, static_cast<int64_t>(bytes));
    return kNcclSuccess;
  };
  api.nccl_mem_free = [](void* memory) {
    MutexLock lock(world->mutex);
    const bool fail = world->Enter("ncclMemFree");
    if (world->memory.erase(memory) == 0) world->Violate("ncclMemFree of nothing");
    std::free(memory);
    return fail ? kFakeNcclError : kNcclSuccess;
  };
  api.nccl_comm_init_rank = InitRank;
  api.nccl_comm_get_async_error = [](NcclComm comm, int* result) {
    MutexLock lock(world->mutex);
    return world->AsyncError(comm, result);
  };
  api.nccl_comm_abort = [](NcclComm comm) {
    MutexLock lock(world->mutex);
    return world->AbortComm(comm);
  };
  api.nccl_comm_register = [](NcclComm comm, void* memory, size_t bytes, void** handle) {
    MutexLock lock(world->mutex);
    if (world->Enter("ncclCommRegister")) return kFakeNcclError;
    static_cast<Comm*>(comm)->registered.push_back(Write(memory, static_cast<int64_t>(bytes)));
    ++world->live_registrations;
    *handle = memory;
    return kNcclSuccess;
  };
  api.nccl_comm_deregister = [](NcclComm comm, void*) {
    MutexLock lock(world->mutex);
    const bool fail = world->Enter("ncclCommDeregister");
    static_cast<Comm*>(comm)->registered.clear();
    --world->live_registrations;
    return fail ? kFakeNcclError : kNcclSuccess;
  };
  api.nccl_group_start = [] {
    MutexLock lock(world->mutex);
    ++world->groups;
    return world->Enter("ncclGroupStart") ? kFakeNcclError : kNcclSuccess;
  };
  api.nccl_group_end = [] {
    MutexLock lock(world->mutex);
    --world->groups;
    return world->Enter("ncclGroupEnd") ? kFakeNcclError : kNcclSuccess;
  };
  api.nccl_all_gather = [](const void* send, void* receive, size_t numel, int type, NcclComm comm,
                           CudaStreamHandle stream) {
    MutexLock lock(world->mutex);
    return world->IssueCollective("ncclAllGather", true, send, receive, numel, type, comm, stream);
  };
  api.nccl_reduce_scatter = [](const void* send, void* receive, size_t numel, int type,
                               NcclComm comm, CudaStreamHandle stream) {
    MutexLock lock(world->mutex);
    return world->IssueCollective("ncclReduceScatter", false, send, receive, numel, type, comm,
                                  stream);
  };
}

}  // namespace

FakeCuda::FakeCuda() : world_(std::make_unique<World>()) {
  world = world_.get();
  FillCuda(api_);
  FillKernels(api_);
  FillNccl(api_);
}

FakeCuda::~FakeCuda() { world = nullptr; }

const CudaApi* FakeCuda::api() const { return &api_; }

void FakeCuda::FailCall(int number) {
  MutexLock lock(world_->mutex);
  world_->fail_call = number;
}

void FakeCuda::SetAsyncError(int result) {
  MutexLock lock(world_->mutex);
  world_->async_error = result;
}

std::vector<std::string> FakeCuda::calls() const {
  MutexLock lock(world_->mutex);
  return world_->calls;
}

int FakeCuda::Count(const std::string& call) const {
  const std::vector<std::string> all = calls();
  return static_cast<int>(std::count(all.begin(), all.end(), call));
}

void FakeCuda::RequireDeviceMemory() {
  MutexLock lock(world_->mutex);
  world_->require_device_memory = true;
}

void FakeCuda::TouchByHost(int device, const void* memory, int64_t bytes, bool write,
                           const std::string& label) {
  MutexLock lock(world_->mutex);
  world_->TouchByHost(device, {static_cast<const char*>(memory), bytes, write}, label);
}

void FakeCuda::Touch(CudaStreamHandle stream, const void* memory, int64_t bytes, bool write,
                     const std::string& label) {
  MutexLock lock(world_->mutex);
  world_->Enqueue(
      world_->Find(stream),
      {.label = label, .host = {}, .regions = {{static_cast<const char*>(memory), bytes, write}}});
}

std::vector<std::string> FakeCuda::violations() const {
  MutexLock lock(world_->mutex);
  return world_->violations;
}

int FakeCuda::live() const {
  MutexLock lock(world_->mutex);
  return static_cast<int>(world_->streams.size() + world_->events.size() + world_->memory.size() +
                          world_->registered.size() + world_->comms.size()) +
         world_->live_registrations;
}

int64_t FakeCuda::allocated_bytes() const {
  MutexLock lock(world_->mutex);
  int64_t bytes = 0;
  for (const auto& [memory, length] : world_->memory) bytes += length;
  return bytes;
}

}  // namespace tessera
