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
  bool Enter(const char* call) {
    calls.push_back(call);
    return static_cast<int>(calls.size()) - 1 == fail_call;
  }
  void Violate(const std::string& what) { violations.push_back(what); }

  Stream* Find(CudaStreamHandle handle);

  void Enqueue(Stream* stream, Op op);

  // Does all work that can be done.
  void Pump();

  int EventQuery(FakeEvent* event);

  int IssueCollective(const char* call, bool gather, const void* send, void* receive, size_t numel,
                      int type, NcclComm handle, CudaStreamHandle stream);

  int AsyncError(NcclComm handle, int* result);

  Comm* FindComm(NcclComm handle);

  // Accesses of an actor whose clock is `clock`, held against all earlier ones and remembered.
  void Check(const std::vector<Region>& regions, const std::string& label, int actor,
             const VectorClock& clock);
  void TouchByHost(int device, const Region& region, const std::string& label);
  // Reported where it has to be device memory.
  void CheckMemory(const std::vector<Region>& regions, const std::string& label);

  int AbortComm(NcclComm handle);

  struct Place {
    std::string id;
    int64_t number = 0;
    int rank = 0;
  };
  Place& Expected(Collective* collective) { return places[collective]; }

  mutable Mutex mutex;  // of everything
  int fail_call = -1;
  int async_error = kNcclSuccess;
  int groups = 0;
  int next_actor = 0;
  int next_id = 0;
  int live_registrations = 0;
  std::vector<std::string> calls;
  std::vector<std::string> violations;
  std::set<Stream*> streams;
  std::set<FakeEvent*> events;
  std::map<void*, int64_t> memory;      // device memory: bytes by address
  std::map<void*, int64_t> registered;  // likewise of the host's
  bool require_device_memory = false;
  std::set<Comm*> comms;
  std::map<std::string, int> joined;  // ranks by id
  std::map<int, VectorClock> hosts;   // by device: what its host thread has waited for

 private:
  // Does the head of the queue; false where it has to wait.
  bool Step(Stream& stream);

  // Does the collectives to which every rank has come.
  bool MeetAll();

  void Meet(Rendezvous& meeting);

  std::vector<Access> accesses;
  std::map<std::pair<std::string, int64_t>, Rendezvous> meetings;
  std::set<std::pair<std::string, int>> aborted;
  std::map<Collective*, Place> places;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_FAKE_CUDA_WORLD_H_
