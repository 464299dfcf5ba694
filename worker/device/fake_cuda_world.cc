#include "worker/device/fake_cuda_world.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/collectives/nccl_kernel_math.h"

namespace tessera {

using fake_cuda::Comm;
using fake_cuda::Join;
using fake_cuda::kFakeNcclError;
using fake_cuda::Stream;

namespace {

KernelDType DTypeOfNccl(int type) {
  for (const KernelDType dtype : {KernelDType::kBFloat16, KernelDType::kFloat16}) {
    if (NcclDataType(dtype) == type) return dtype;
  }
  return KernelDType::kFloat32;
}

void Sum(KernelDType dtype, const std::vector<const char*>& inputs, int64_t numel, char* out) {
  WithKernelFormat(dtype, [&](auto format) {
    using Format = decltype(format);
    using Stored = typename Format::Stored;
    std::vector<Stored> sum(numel);  // the output is part of an input
    for (int64_t i = 0; i < numel; ++i) {
      float total = 0;
      for (const char* input : inputs)
        total += Format::Load(reinterpret_cast<const Stored*>(input)[i]);
      sum[i] = Format::Store(total);
    }
    std::memcpy(out, sum.data(), numel * sizeof(Stored));
  });
}

}  // namespace

Stream* FakeCuda::World::Find(CudaStreamHandle handle) {
  Stream* stream = static_cast<Stream*>(handle);
  if (streams.count(stream) == 0) Violate("a stream that is no more is used");
  return stream;
}

void FakeCuda::World::Enqueue(Stream* stream, Op op) {
  op.host = hosts[stream->device];
  stream->queue.push_back(std::move(op));
}

void FakeCuda::World::Pump() {
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream* stream : streams) {
      while (!stream->queue.empty() && Step(*stream)) {
        stream->queue.pop_front();
        moved = true;
      }
    }
    if (MeetAll()) moved = true;
  }
}

int FakeCuda::World::EventQuery(FakeEvent* event) {
  Pump();
  if (event->recording == nullptr) return kCudaSuccess;
  if (!event->recording->passed) return kCudaErrorNotReady;
  Join(hosts[event->recording->device], event->recording->clock);
  return kCudaSuccess;
}

int FakeCuda::World::IssueCollective(const char* call, bool gather, const void* send, void* receive,
                                     size_t numel, int type, NcclComm handle,
                                     CudaStreamHandle stream) {
  if (Enter(call)) return kFakeNcclError;
  Comm* comm = FindComm(handle);
  if (comm == nullptr) return kFakeNcclError;
  auto collective = std::make_shared<Collective>(
      Collective{gather, static_cast<const char*>(send), static_cast<char*>(receive),
                 static_cast<int64_t>(numel), DTypeOfNccl(type)});
  const int64_t slice = static_cast<int64_t>(numel) * KernelDTypeBytes(collective->dtype);
  const char* whole = gather ? collective->receive : collective->send;
  const char* part = gather ? collective->send : collective->receive;
  if (part != whole + comm->rank * slice) Violate(absl::StrCat(call, " is not in place"));
  const bool registered =
      std::any_of(comm->registered.begin(), comm->registered.end(), [&](const Region& region) {
        return region.begin <= whole && whole + comm->ranks * slice <= region.begin + region.bytes;
      });
  if (!registered) Violate(absl::StrCat(call, " of memory that is not registered"));
  Op op = {.label = call,
           .host = {},
           .regions = {{whole, comm->ranks * slice, true}},
           .collective = collective};
  meetings[{comm->id, comm->issued}].ranks = comm->ranks;
  Expected(collective.get()) = {comm->id, comm->issued++, comm->rank};
  comm->deferred.emplace_back(Find(stream), std::move(op));
  return kNcclInProgress;
}

int FakeCuda::World::AsyncError(NcclComm handle, int* result) {
  if (Enter("ncclCommGetAsyncError")) return kFakeNcclError;
  Comm* comm = FindComm(handle);
  if (comm == nullptr) return kFakeNcclError;
  *result = async_error;
  if (async_error != kNcclSuccess) return kNcclSuccess;
  if (joined[comm->id] < comm->ranks) *result = kNcclInProgress;
  for (auto& [stream, op] : comm->deferred) Enqueue(stream, std::move(op));
  comm->deferred.clear();
  return kNcclSuccess;
}

Comm* FakeCuda::World::FindComm(NcclComm handle) {
  Comm* comm = static_cast<Comm*>(handle);
  if (comms.count(comm) > 0) return comm;
  Violate("a communicator that is no more is used");
  return nullptr;
}

int FakeCuda::World::AbortComm(NcclComm handle) {
  const bool fail = Enter("ncclCommAbort");
  Comm* comm = FindComm(handle);
  if (comm == nullptr) return kFakeNcclError;
  if (groups == 0) Violate("ncclCommAbort outside a group");
  for (auto& [key, meeting] : meetings) {
    if (key.first != comm->id || meeting.arrived.count(comm->rank) == 0) continue;
    meeting.arrived[comm->rank].second->done = true;  // ends without its bytes
  }
  aborted.insert({comm->id, comm->rank});
  live_registrations -= static_cast<int>(comm->registered.size());
  comms.erase(comm);
  delete comm;
  return fail ? kFakeNcclError : kNcclSuccess;
}

bool FakeCuda::World::Step(Stream& stream) {
  Op& op = stream.queue.front();
  if (op.wait_for != nullptr) {
    if (!op.wait_for->passed) return false;
    Join(stream.clock, op.wait_for->clock);
  }
  if (op.collective != nullptr && !op.collective->done) {
    const Place& place = Expected(op.collective.get());
    if (aborted.count({place.id, place.rank}) > 0) return true;
    meetings[{place.id, place.number}].arrived[place.rank] = {&stream, op.collective};
    return false;
  }
  Join(stream.clock, op.host);
  ++stream.clock[stream.actor];
  if (op.collective == nullptr) Check(op.regions, op.label, stream.actor, stream.clock);
  if (op.run) op.run();
  if (op.record != nullptr) {
    op.record->clock = stream.clock;
    op.record->passed = true;
  }
  return true;
}

void FakeCuda::World::Check(const std::vector<Region>& regions, const std::string& label, int actor,
                            const VectorClock& clock) {
  const auto seen = [&](const Access& old) {
    const auto found = clock.find(old.actor);
    return found != clock.end() && old.time <= found->second;
  };
  for (const Region& region : regions) {
    for (const Access& old : accesses) {
      const bool overlap = region.begin < old.region.begin + old.region.bytes &&
                           old.region.begin < region.begin + region.bytes;
      if (!overlap || !(region.write || old.region.write) || old.actor == actor) continue;
      if (seen(old)) continue;
      Violate(absl::StrCat(label, region.write ? " writes" : " reads", " what ", old.label,
                           old.region.write ? " writes" : " reads", " with no order between"));
    }
  }
  for (const Region& region : regions) {
    accesses.push_back({region, actor, clock.at(actor), label});
  }
}

void FakeCuda::World::TouchByHost(int device, const Region& region, const std::string& label) {
  const int actor = -1 - device;
  ++hosts[device][actor];
  Check({region}, label, actor, hosts[device]);
}

void FakeCuda::World::CheckMemory(const std::vector<Region>& regions, const std::string& label) {
  if (!require_device_memory) return;
  for (const Region& region : regions) {
    const auto inside = [&](const std::pair<void* const, int64_t>& block) {
      const char* begin = static_cast<const char*>(block.first);
      return begin <= region.begin && region.begin + region.bytes <= begin + block.second;
    };
    if (region.bytes == 0 || std::any_of(memory.begin(), memory.end(), inside) ||
        std::any_of(registered.begin(), registered.end(), inside)) {
      continue;
    }
    Violate(absl::StrCat(label, " touches memory that the GPU cannot"));
  }
}

bool FakeCuda::World::MeetAll() {
  bool moved = false;
  for (auto it = meetings.begin(); it != meetings.end();) {
    if (it->second.ranks == 0 || static_cast<int>(it->second.arrived.size()) < it->second.ranks) {
      ++it;
      continue;
    }
    Meet(it->second);
    it = meetings.erase(it);
    moved = true;
  }
  return moved;
}

void FakeCuda::World::Meet(Rendezvous& meeting) {
  VectorClock all;
  std::vector<Collective*> parts;
  for (auto& [rank, arrival] : meeting.arrived) {
    Stream& stream = *arrival.first;
    Join(stream.clock, stream.queue.front().host);
    ++stream.clock[stream.actor];
    Check(stream.queue.front().regions, stream.queue.front().label, stream.actor, stream.clock);
    Join(all, stream.clock);
    parts.push_back(arrival.second.get());
  }
  for (auto& [rank, arrival] : meeting.arrived) {
    arrival.first->clock = all;
    arrival.second->done = true;
  }
  const Collective& first = *parts.front();
  for (const Collective* part : parts) {
    if (part->gather != first.gather || part->numel != first.numel || part->dtype != first.dtype) {
      return Violate("ranks issued different collectives");
    }
  }
  const int64_t slice = first.numel * KernelDTypeBytes(first.dtype);
  std::vector<std::string> sums;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<const char*> inputs;
    for (const Collective* part : parts) {
      if (first.gather) std::memmove(part->receive + rank * slice, parts[rank]->send, slice);
      inputs.push_back(part->send + rank * slice);
    }
    if (first.gather) continue;
    sums.emplace_back(slice, '\0');
    Sum(first.dtype, inputs, first.numel, sums.back().data());
  }
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    std::memcpy(parts[rank]->receive, sums[rank].data(), slice);
  }
}

}  // namespace tessera
