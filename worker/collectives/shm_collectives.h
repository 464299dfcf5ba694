// Collectives between the ranks of one host over shared memory: all ranks map the same unsharded
// slots, so an all-gather is each rank's copy of its own shard, and each rank reads its slice of
// its peers' gradients where they wrote them.
//
// Operations have no thread of their own. They are done by the calling thread whenever it waits for
// an event or asks for Progress, so a rank that waits also does its part of what its peers wait
// for. The order between operations is kept by tenancies (shm_control.h), not by streams: one that
// cannot go on yet does not hold up the next.
#ifndef TESSERA_WORKER_COLLECTIVES_SHM_COLLECTIVES_H_
#define TESSERA_WORKER_COLLECTIVES_SHM_COLLECTIVES_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/v1/plan.pb.h"
#include "tessera/v1/stats.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/collectives/host_sync.h"
#include "worker/collectives/host_turns.h"
#include "worker/fault_points.h"
#include "worker/position.h"

namespace tessera {

class ShmCollectives final : public Collectives {
 public:
  struct Options {
    // On this host, which has as many ranks as `sync` says: whole shard groups, one after the
    // other.
    Group group;
    HostSync::Options sync;
    // The group's part of the host's unsharded file and the host's gradient file, mapped, and their
    // slots. `memory` keeps them (and the control file) mapped.
    char* unsharded = nullptr;
    char* gradients = nullptr;
    v1::Layout layout;  // slots and gradient_stride_bytes
    std::shared_ptr<void> memory;
    // Between the ranks of equal local rank on the job's hosts; null where there is one. The
    // collectives close them.
    std::shared_ptr<HostTurns> hosts;
    // By unit index, for errors.
    std::vector<std::string> unit_names;
    FaultPoints* faults = nullptr;
    // What this rank's plan and layout are, in one word that is the same on every rank; 0: not
    // compared. A rank that holds others is refused in the first operation of a unit.
    uint64_t fingerprint = 0;
    // Told where the rank waits. Outlives the collectives; may be null.
    PositionPublisher* position = nullptr;
    // In place of sync.timeout until all ranks have met in an exchange: those that are started
    // again take longer to come than others to wait. Zero: no other.
    absl::Duration first_timeout = absl::ZeroDuration();
  };

  explicit ShmCollectives(Options options);
  ~ShmCollectives() override;

  const Group& group() const override { return options_.group; }
  void* Unsharded(int slot) override;
  void* Gradient(int gradient_slot) override;
  absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream* stream, OpTiming* timing) override;
  void ReleaseUnsharded(int slot) override;
  void PublishShard(int unit) override;
  absl::StatusOr<Event> AcquireGradient(int unit, int gradient_slot, Stream* stream) override;
  absl::Status ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                            Stream* stream) override;
  void* Accumulated(int accumulation_slot) override;
  absl::Status ReleaseGradient(int gradient_slot) override;
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override;
  absl::StatusOr<Event> SumReplicas(int unit, int gradient_slot, const ShardSpan& shard,
                                    Stream* stream) override;
  void Reshard(int slot, int reshard_slot, int group, int64_t bytes) override;
  absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                            char* whole) override;
  absl::Status ExchangeParts(int unit, int gradient_slot, int64_t bytes,
                             absl::FunctionRef<void(char* slot)> write,
                             absl::FunctionRef<void(int rank, const char* part)> read) override;
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view what) override;
  absl::Status Progress() override;
  void Abort(const absl::Status& status) override;
  void Interrupt(const absl::Status& status) override;

 private:
  enum class Kind {
    kUnshard = 1,
    kReduce = 2,
    kExchange = 3,
    kGatherShards = 4,
    kSumReplicas = 5,
    kParts = 6,
  };
  class Operation;
  class AllGatherOperation;
  class ArriveOperation;
  class AcquireOperation;
  class ReduceOperation;
  class SumReplicasOperation;
  class HostReduceOperation;
  class HostSumOperation;

  Event Start(std::shared_ptr<Operation> operation);
  void AdvancePending();
  absl::Status WaitFor(Operation& operation);
  // Numbers the next collective and lets the others see it.
  uint64_t Issue(Kind kind, int unit);
  // FAILED_PRECONDITION: some rank issued something else as its collective of the same number
  // (ORDER_MISMATCH), or holds another plan or layout (RANKS_DISAGREE).
  absl::Status CheckAgreement(uint64_t tag) const;
  absl::Status CheckFingerprint(int local_rank) const;
  // `status` of a wait that is over; where it is DEADLINE_EXCEEDED, with what the ranks that are
  // missing have issued last. The place of a failed wait is the last that this rank says.
  absl::Status EndWait(absl::Status status, uint64_t tag,
                       absl::FunctionRef<std::vector<int>()> missing);
  // Of the last collective that a local rank has issued; 0: none.
  uint64_t LastIssued(int local_rank) const;
  std::string Describe(uint64_t tag) const;
  static std::pair<int, v1::Operation> PlaceOf(uint64_t tag);
  // Local ranks' world ranks whose counter is below `tenancy`.
  std::vector<int> Below(int slot, bool left, uint64_t tenancy) const;
  bool Resident() const { return options_.layout.unshard_mode() == v1::RESIDENT; }
  bool AllReached(int slot, bool left, uint64_t tenancy) const;
  // Local ranks that use a slot: of the shard group for an unsharded one, all for a gradient slot,
  // which all groups may read. [first, end)
  std::pair<int, int> UsersOf(int slot) const;
  int group_size() const { return static_cast<int>(options_.group.ranks.size()); }
  char* ReshardSlot(int reshard_slot) const;
  SlotControl& Own(int slot) const { return sync_.slot(sync_.index(), slot); }
  const char* GradientOf(int local_rank, int gradient_slot) const;
  const char* AccumulatedOf(int local_rank, int accumulation_slot) const;
  // `bytes` of every rank's shard into `whole`, `stride` bytes apart.
  absl::Status GatherPiece(int unit, int gradient_slot, const char* piece, int64_t bytes,
                           char* whole, int64_t stride);

  DivideFactors DivideOf(const ReduceScatterOp& op) const;
  std::shared_ptr<Operation> MakeReduce(uint64_t tag, const ReduceScatterOp& op,
                                        const DivideFactors& divide, OpTiming* timing);

  // shm_hosts.cc: what goes between hosts. OK where there is one.
  absl::Status CheckHosts() const;
  std::shared_ptr<Operation> MakeHostReduce(uint64_t tag, const ReduceScatterOp& op,
                                            OpTiming* timing);
  std::shared_ptr<Operation> MakeHostSum(std::shared_ptr<Operation> local, const ShardSpan& shard);
  absl::StatusOr<std::vector<std::string>> GatherHosts(const std::vector<std::string>& own,
                                                       int64_t turn, absl::string_view what);

  const Options options_;
  HostSync sync_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  std::vector<uint64_t> tenancy_;         // by slot: unsharded slots, then gradient slots
  const int group_start_;                 // local rank of the shard group's first
  const std::vector<int> resident_slot_;  // by unit; -1: it takes turns with others
  uint64_t issued_ = 0;
  uint64_t exchanged_ = 0;
  std::list<std::shared_ptr<Operation>> pending_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_SHM_COLLECTIVES_H_
