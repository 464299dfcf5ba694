// Collectives between GPUs over NCCL, one GPU a rank. Each rank owns its unsharded and gradient
// buffers: one arena from ncclMemAlloc, as long as the layout says, registered with both
// communicators (one for unshard, one for reduce: one alone would serialise them).
//
//   TESSERA_ASSIGN_OR_RETURN(auto collectives, NcclCollectives::Create({
//       .group = group, .api = api, .device = local_rank, .unshard_id = ids[0],
//       .reduce_id = ids[1], .layout = layout, .unit_names = names, .compute = compute.get(),
//       .host = host.get()}));
//
// Shards, and pointers of operations too, are memory that kernels can use: the GPU's, or the host's
// where it is registered (RegisteredMemory). What a rank does with a buffer runs on
// streams, and the order between these is what keeps leases: a slot is written only after the
// release of its last tenant on the stream that used it, a gradient buffer only after its last
// reduction. The stream given to an operation is the one that uses the unit (null:
// Options::compute); the gathers themselves run on a stream "unshard", the reductions on "reduce".
// An AllGather runs beside what is already on the caller's stream, so the returned event must be
// waited for before the unit is used.
//
// Different from shared memory: NCCL sums in its own order and rounds at each addition; a
// DEADLINE_EXCEEDED cannot name the missing ranks and ranks that disagree on the order are not
// told apart from ranks that are late, since NCCL knows neither; PublishShard tells, on the
// compute stream, that shards were written, and later gathers wait for that. A host that writes
// shards does so after an Exchange, which waits until no gather reads them any more.
//
// What ranks say to each other beside NCCL (votes, aborts, who is still there) goes through the
// collectives of the host.
//
// Drop it when the last operation of every rank has passed (after an Exchange), or after Abort; it
// waits for what its own streams and the compute stream still do. Shards outlive it.
// Errors besides those of Collectives: INTERNAL and RESOURCE_EXHAUSTED of CUDA and NCCL; each names
// the call, the GPU and the unit.
//
// Thread-safety: one thread calls, the one that created it; Abort and Interrupt may be called from
// any.
#ifndef TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_
#define TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/device_arena.h"
#include "common/mutex.h"
#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/device/cuda_device.h"

namespace tessera {

class NcclCollectives final : public Collectives {
 public:
  struct Options {
    Group group;
    const CudaApi* api = nullptr;  // outlives this and every event
    int device = 0;
    // From NewId on one rank, the same on all; used once.
    std::string unshard_id = "";
    std::string reduce_id = "";
    v1::Layout layout = {};                    // slots and staging_bytes; SLOTS mode
    std::vector<std::string> unit_names = {};  // by unit index, for errors
    CudaStream* compute = nullptr;             // outlives this
    // Of the same ranks, and used for Exchange, Progress, Abort and Interrupt alone. Outlives this.
    Collectives* host = nullptr;
    CudaWait wait = {};  // also of the setting up
    // What the above points to, if nobody else keeps it; goes last.
    std::shared_ptr<void> keep = nullptr;
  };

  // A new id (kNcclIdBytes bytes) for one communicator. INTERNAL, UNAVAILABLE: as NcclError.
  static absl::StatusOr<std::string> NewId(const CudaApi& api, int device);

  // Waits for the other ranks. INVALID_ARGUMENT: an id of the wrong length or a resident layout;
  // DEADLINE_EXCEEDED: not all ranks came; otherwise as above.
  static absl::StatusOr<std::unique_ptr<NcclCollectives>> Create(Options options);
  ~NcclCollectives() override;

  const Group& group() const override { return options_.group; }
  void* Unsharded(int slot) override;
  void* Gradient(int gradient_slot) override;
  absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream* stream, OpTiming* timing) override;
  void ReleaseUnsharded(int slot) override;
  void PublishShard(int unit) override;
  absl::StatusOr<Event> AcquireGradient(int unit, int gradient_slot, Stream* stream) override;
  absl::Status ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                            Stream* stream) override;
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override;
  absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                            char* whole) override;
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view what) override;
  absl::Status Progress() override { return Health(); }
  // Aborts both communicators in one group, so that neither waits for the other. Once.
  void Abort(const absl::Status& status) override;
  void Interrupt(const absl::Status& status) override;

 private:
  enum Which { kUnshard = 0, kReduce = 1 };
  class Pending;
  using EventPointer = std::shared_ptr<CudaEvent>;
  struct UnshardedSlot {
    const CudaStream* user = nullptr;  // of its tenant
    EventPointer released;             // by the last tenant's user
  };
  // The time between the two is this rank's own work.
  struct Work {
    EventPointer begin;
    EventPointer end;
  };

  explicit NcclCollectives(Options options);
  absl::Status SetUp();
  absl::Status AllocateArena();
  absl::Status InitComm(Which which, const std::string& id);
  absl::Status RegisterArena(Which which);
  void TearDownLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Calls NCCL with a communicator and waits until it has put its work on the stream.
  absl::Status CallNccl(Which which, absl::string_view call, absl::string_view what,
                        absl::FunctionRef<int(NcclComm)> function);
  absl::StatusOr<bool> Ready(Which which);
  absl::Status AsyncErrorLocked(Which which, int* result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What ended this, a peer that is gone, or NCCL's own error by now.
  absl::Status Health();
  absl::Status NcclHealth();
  absl::Status RunKernel(const CudaStream& stream, absl::string_view call,
                         absl::FunctionRef<int()> launch, std::vector<Work>* timed);
  absl::Status GatherPieces(int gradient_slot, const float* shard, int64_t shard_numel,
                            float* whole, absl::string_view what);
  absl::StatusOr<Event> Passing(const CudaStream& stream, std::string what, std::vector<Work> work,
                                OpTiming* timing, EventPointer* kept);
  const CudaStream& UserOf(Stream* stream) const;
  std::string Describe(absl::string_view action, int unit) const;
  void Keep(const absl::Status& status);

  const Options options_;
  const CudaApi& api_;
  const int64_t ranks_;
  const DeviceArena places_;  // in the arena
  char* arena_ = nullptr;
  std::unique_ptr<CudaStream> unshard_stream_;
  std::unique_ptr<CudaStream> reduce_stream_;
  std::vector<UnshardedSlot> unsharded_;
  std::vector<EventPointer> reduced_;  // by gradient slot
  EventPointer shards_written_;
  EventPointer shards_read_;  // by the last gather

  // Held during calls of NCCL, which don't block: Abort frees the communicators under their users.
  Mutex mutex_;
  std::array<NcclComm, 2> comms_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<void*, 2> registrations_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // by Abort, Interrupt or a void call's error
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_
