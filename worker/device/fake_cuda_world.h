// The insides of FakeCuda (worker/device/fake_cuda_api.h): streams, events, communicators, and the
// vector clocks that find accesses with no order between them. Only the fake includes it.
//
// Thread-safety: `mutex` is held around every call.
#ifndef TESSERA_WORKER_DEVICE_FAKE_CUDA_WORLD_H_
#define TESSERA_WORKER_DEVICE_FAKE_CUDA_WORLD_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace fake_cuda {

inline constexpr int kFakeCudaError = 719;  // cudaErrorLaunchFailure
inline constexpr int kFakeNcclError = 3;    // ncclInternalError

// By actor: how much of its work is known to have happened.
using VectorClock = std::map<int, int64_t>;

inline void Join(VectorClock& into, const VectorClock& from) {
  for (const auto& [actor, time] : from) into[actor] = std::max(into[actor], time);
}

struct Region {
  const char* begin;
  int64_t bytes;
  bool write;
};

struct Access {
  Region region;
  int actor;
  int64_t time;
  std::string label;
};

struct Recording {  // of an event
  int device = 0;
  bool passed = false;
  VectorClock clock;
};

struct FakeEvent {
  std::shared_ptr<Recording> recording;
};

struct Collective {
  bool gather = false;
  const char* send = nullptr;
  char* receive = nullptr;
  int64_t numel = 0;
  KernelDType dtype = KernelDType::kFloat32;
  bool done = false;
};

struct Op {
  std::string label;
  VectorClock host;
  std::vector<Region> regions = {};
  std::function<void()> run = nullptr;
  std::shared_ptr<Recording> wait_for = nullptr;
  std::shared_ptr<Recording> record = nullptr;
  std::shared_ptr<Collective> collective = nullptr;
};

struct Stream {
  int actor = 0;
  int device = 0;
  VectorClock clock = {};
  std::deque<Op> queue = {};
};

struct Comm {
  std::string id;
  int ranks = 0;
  int rank = 0;
  int64_t issued = 0;
  // Returned as "in progress": put on the stream when the caller asks.
  std::vector<std::pair<Stream*, Op>> deferred = {};
  std::vector<Region> registered = {};
};

struct Rendezvous {
  std::map<int, std::pair<Stream*, std::shared_ptr<Collective>>> arrived;  // by rank
  int ranks = 0;
};

}  // namespace fake_cuda

class FakeCuda::World {
 public:
  using Access = fake_cuda::Access;
  using Collective = fake_cuda::Collective;
  using Comm = fake_cuda::Comm;
  using FakeEvent = fake_cuda::FakeEvent;
  using Op = fake_cuda::Op;
  using Region = fake_cuda::Region;
  using Rendezvous = fake_cuda::Rendezvous;
  using Stream = fake_cuda::Stream;
  using VectorClock = fake_cuda::VectorClock;

  // Counts a call; true where it is to fail.
  bool Enter(const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    calls.push_back(call);
    return static_cast<int>(calls.size()) - 1 == fail_call;
  }
  void Violate(const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    violations.push_back(what);
  }

  Stream* Find(CudaStreamHandle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void Enqueue(Stream* stream, Op op) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Does all work that can be done.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  int EventQuery(FakeEvent* event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  int IssueCollective(const char* call, bool gather, const void* send, void* receive, size_t numel,
                      int type, NcclComm handle, CudaStreamHandle stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  int AsyncError(NcclComm handle, int* result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Comm* FindComm(NcclComm handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Accesses of an actor whose clock is `clock`, held against all earlier ones and remembered.
  void Check(const std::vector<Region>& regions, const std::string& label, int actor,
             const VectorClock& clock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TouchByHost(int device, const Region& region, const std::string& label)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Reported where it has to be device memory.
  void CheckMemory(const std::vector<Region>& regions, const std::string& label)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  int AbortComm(NcclComm handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  struct Place {
    std::string id;
    int64_t number = 0;
    int rank = 0;
  };
  Place& Expected(Collective* collective) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return places[collective];
  }

  mutable Mutex mutex;
  int fail_call ABSL_GUARDED_BY(mutex) = -1;
  int async_error ABSL_GUARDED_BY(mutex) = kNcclSuccess;
  int groups ABSL_GUARDED_BY(mutex) = 0;
  int next_actor ABSL_GUARDED_BY(mutex) = 0;
  int next_id ABSL_GUARDED_BY(mutex) = 0;
  int live_registrations ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::string> calls ABSL_GUARDED_BY(mutex);
  std::vector<std::string> violations ABSL_GUARDED_BY(mutex);
  std::set<Stream*> streams ABSL_GUARDED_BY(mutex);
  std::set<FakeEvent*> events ABSL_GUARDED_BY(mutex);
  std::map<void*, int64_t> memory ABSL_GUARDED_BY(mutex);      // device memory: bytes by address
  std::map<void*, int64_t> registered ABSL_GUARDED_BY(mutex);  // likewise of the host's
  bool require_device_memory ABSL_GUARDED_BY(mutex) = false;
  std::set<Comm*> comms ABSL_GUARDED_BY(mutex);
  std::map<std::string, int> joined ABSL_GUARDED_BY(mutex);  // ranks by id
  // By device: what its host thread has waited for.
  std::map<int, VectorClock> hosts ABSL_GUARDED_BY(mutex);

 private:
  // Does the head of the queue; false where it has to wait.
  bool Step(Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Does the collectives to which every rank has come.
  bool MeetAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void Meet(Rendezvous& meeting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  std::vector<Access> accesses ABSL_GUARDED_BY(mutex);
  std::map<std::pair<std::string, int64_t>, Rendezvous> meetings ABSL_GUARDED_BY(mutex);
  std::set<std::pair<std::string, int>> aborted ABSL_GUARDED_BY(mutex);
  std::map<Collective*, Place> places ABSL_GUARDED_BY(mutex);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_FAKE_CUDA_WORLD_H_
