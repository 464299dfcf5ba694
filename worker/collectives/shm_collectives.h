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

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/collectives/host_sync.h"
#include "worker/fault_points.h"

namespace tessera {

class ShmCollectives final : public Collectives {
 public:
  struct Options {
    Group group;  // all on this host
    HostSync::Options sync;
    // The host's unsharded and gradient files, mapped, and their slots. `memory` keeps them (and
    // the control file) mapped.
    char* unsharded = nullptr;
    char* gradients = nullptr;
    v1::Layout layout;  // slots and gradient_stride_bytes
    std::shared_ptr<void> memory;
    // By unit index, for errors.
    std::vector<std::string> unit_names;
    FaultPoints* faults = nullptr;
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
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override;
  absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                            char* whole) override;
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view what) override;
  absl::Status Progress() override;
  void Abort(const absl::Status& status) override { sync_.Abort(status); }
  void Interrupt(const absl::Status& status) override { sync_.Interrupt(status); }

 private:
  enum class Kind { kUnshard = 1, kReduce = 2, kExchange = 3, kGatherShards = 4 };
  class Operation;
  class AllGatherOperation;
  class ArriveOperation;
  class AcquireOperation;
  class ReduceOperation;

  Event Start(std::shared_ptr<Operation> operation);
  void AdvancePending();
  absl::Status WaitFor(Operation& operation);
  // Numbers the next collective and lets the others see it.
  uint64_t Issue(Kind kind, int unit);
  // FAILED_PRECONDITION: some rank issued something else as its collective of the same number.
  absl::Status CheckAgreement(uint64_t tag) const;
  std::string Describe(uint64_t tag) const;
  // Local ranks' world ranks whose counter is below `tenancy`.
  std::vector<int> Below(int slot, bool left, uint64_t tenancy) const;
  bool Resident() const { return options_.layout.unshard_mode() == v1::RESIDENT; }
  bool AllReached(int slot, bool left, uint64_t tenancy) const;
  const char* GradientOf(int local_rank, int gradient_slot) const;

  const Options options_;
  HostSync sync_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  std::vector<uint64_t> tenancy_;         // by slot: unsharded slots, then gradient slots
  const std::vector<int> resident_slot_;  // by unit; -1: it takes turns with others
  uint64_t issued_ = 0;
  uint64_t exchanged_ = 0;
  std::list<std::shared_ptr<Operation>> pending_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_SHM_COLLECTIVES_H_
