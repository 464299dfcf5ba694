// Collectives between GPUs over NCCL, one GPU a rank. Each rank owns its unsharded and gradient
// buffers: one arena from ncclMemAlloc, as long as the layout says, registered with both
// communicators (one for unshard, one for reduce: one alone would serialise them).
//
//   TESSERA_ASSIGN_OR_RETURN(auto collectives, NcclCollectives::Create({
//       .group = group, .api = api, .device = local_rank, .unshard_id = ids[0],
//       .reduce_id = ids[1], .layout = layout, .unit_names = names, .compute = compute.get(),
//       .exchange = exchange}));
//
// Shards are device memory, and pointers of operations too. What a rank does with a buffer runs on
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
// compute stream, that shards were written, and later gathers wait for that.
//
// Drop it when the last operation of every rank has passed (after an Exchange), or after Abort; it
// waits for what its own streams still do. Shards outlive it.
// Errors besides those of Collectives: INTERNAL and RESOURCE_EXHAUSTED of CUDA and NCCL; each names
// the call, the GPU and the unit.
//
// Thread-safety: one thread calls, the one that created it; Abort and Interrupt may be called from
// any.
#ifndef TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_
#define TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "common/mutex.h"
#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/device/cuda_device.h"

namespace tessera {

class NcclCollectives final : public Collectives {
 public:
  // What Collectives::Exchange does. Votes are small and on the host: they don't go over NCCL.
  using ExchangeFunction = std::function<absl::StatusOr<std::vector<std::string>>(
      absl::string_view payload, absl::string_view what)>;

  struct Options {
    Group group;
    const CudaApi* api = nullptr;  // outlives this and every event
    int device = 0;
    // From NewId on one rank, the same on all; used once.
    std::string unshard_id = "";
    std::string reduce_id = "";
    v1::Layout layout = {};  // of slots; SLOTS mode
    // Bytes of the largest padded unit in its reduce_dtype among those whose reduce_dtype is not
    // their param_dtype. 0: there is none.
    int64_t staging_bytes = 0;
    std::vector<std::string> unit_names = {};  // by unit index, for errors
    CudaStream* compute = nullptr;             // outlives this
    ExchangeFunction exchange = nullptr;
    CudaWait wait = {};  // also of the setting up
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
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override;
  absl::Status GatherShards(int unit, int gradient_slot, const float* shard, int64_t shard_numel,
                            float* whole) override;
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
  // What ended this, an error of a stream's bookkeeping, or NCCL's own error by now.
  absl::Status Health();
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
  char* arena_ = nullptr;
  int64_t gradients_offset_ = 0;
  int64_t staging_offset_ = 0;
  int64_t arena_bytes_ = 0;
  std::unique_ptr<CudaStream> unshard_stream_;
  std::unique_ptr<CudaStream> reduce_stream_;
  std::vector<UnshardedSlot> unsharded_;
  std::vector<EventPointer> reduced_;  // by gradient slot
  EventPointer shards_written_;

  // Held during calls of NCCL, which don't block: Abort frees the communicators under their users.
  Mutex mutex_;
  std::array<NcclComm, 2> comms_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<void*, 2> registrations_ ABSL_GUARDED_BY(mutex_) = {};
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // by Abort, Interrupt or a void call's error
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_NCCL_COLLECTIVES_H_
