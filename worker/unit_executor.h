// UnitExecutor: takes each unit through sharded -> unsharding -> unsharded, and its gradients
// through writing -> reducing, in the slots that the layout planned. It decides which slot, when to
// gather ahead and whether the order is kept; Collectives move the bytes.
//
// Every decision follows from the calls that all ranks make alike (never from timing), so all ranks
// decide alike without talking.
//
// Slots: a unit goes into the slot of its level or a spare one, whichever has been free longest. A
// unit whose last use ends stays where it is if it is among the next `prefetch` of the order, else
// its slot is free. An Unshard that finds no slot first drops a unit that was gathered ahead; if
// there is none it is FAILED_PRECONDITION, never a wait. A resident unit is always in its own
// place. The root (but for memory.reshard_root), and a unit to which the layout gives a slot of its
// own (SHARD_GRAD_OP), stays whole from its first use to the Sweep. A unit with a reshard slot
// leaves this rank's part there when it is freed within a step, and is gathered from the parts for
// the rest of the step.
//
// Gradient slots: which one is a unit's follows from the layout alone (gradient_slots.h). A unit
// holds it from its first GradientOf to its Reduce; KeepGradient holds it over micro-batches.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_UNIT_EXECUTOR_H_
#define TESSERA_WORKER_UNIT_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera/v1/plan.pb.h"
#include "worker/collectives/collectives.h"
#include "worker/shard_store.h"
#include "worker/stats_recorder.h"

namespace tessera {

// FSDP's BACKWARD_PRE, BACKWARD_POST and None: when a unit's backward starts to gather the next.
enum class BackwardPrefetch { kPre, kPost, kNone };

class UnitExecutor {
 public:
  struct Options {
    v1::Layout layout;  // slots and prefetch
    std::vector<v1::Unit> units;
    std::vector<v1::UnitLayout> layouts;
    Collectives* collectives = nullptr;
    ShardStore* store = nullptr;
    BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
    StatsRecorder* stats = nullptr;
    double divide_factor = 0;  // of summed gradients; 0: the number of ranks
  };

  explicit UnitExecutor(Options options);

  // Units in the order of the steps' Unshard calls; without it the first step records it.
  absl::Status SetOrder(std::vector<int> order);

  void BeginStep();
  // Gathers the unit if it is not whole and counts a use. `in_order`: the call is part of the
  // step's order. FAILED_PRECONDITION: no slot is left (names the units in them), or
  // (ORDER_MISMATCH) not the unit that the order has here.
  // `backward`: for a backward, or what is computed again there; chooses what is gathered ahead.
  // `full`: in original_dtype; while a use in another dtype lasts, FAILED_PRECONDITION.
  absl::Status Unshard(int unit, bool in_order, bool backward = false, bool full = false);
  // Ends a use.
  void Release(int unit);
  absl::Status Prefetch(int unit);
  // From now on the unit's Unshard in a forward (or a backward) starts to gather `ahead` in place
  // of the units that come next in the order; at most layout.prefetch of them at once, as ever.
  void SetPrefetch(int unit, bool backward, std::vector<int> ahead);
  // The unsharded unit; null unless it has a use.
  char* Unsharded(int unit) const;
  DType WholeDType(int unit) const;  // of its elements there

  // Where to write the gradient of a parameter: {memory, whether to add}.
  struct GradientTarget {
    char* data = nullptr;
    bool accumulate = false;
  };
  absl::StatusOr<GradientTarget> GradientOf(int unit, int parameter);
  // Starts to average the unit's gradients over all ranks. With all_reduce = false, and where there
  // are replicas, only to sum them over the shard group: the step's last Reduce of the unit, with
  // true, sums these sums over the replicas too. Parameters without a gradient count as zero.
  // FAILED_PRECONDITION: all_reduce is false after it was true in the step.
  absl::Status Reduce(int unit, bool all_reduce = true);
  // BackwardPrefetch::kPost: the unit's backward is done, and what comes after it may be gathered.
  absl::Status PrefetchAfter(int unit);
  // In place of the collectives' reduction, from now on. It waits, and drops the gradient slot.
  using ReduceHook = std::function<absl::Status(const ReduceScatterOp& op, int64_t padded_numel)>;
  void SetReduceHook(ReduceHook hook) { reduce_hook_ = std::move(hook); }
  bool has_reduce_hook() const { return reduce_hook_ != nullptr; }
  // The longest gradient slot. FAILED_PRECONDITION: gradients are in some slot (names the unit), so
  // that ranks might not agree which are free.
  absl::StatusOr<int> FreeGradientSlot() const;
  // Instead of Reduce: the gradients stay where they are, and a later micro-batch of the step adds
  // to them and reduces the sum. Nothing is sent. Only where the layout has a gradient slot for
  // each unit.
  // Where the layout has the unit among its accumulation slots, they are added to what is there, in
  // its dtype, and the gradient slot is free again.
  absl::Status KeepGradient(int unit);
  // The unit's flat parameter as the master shards have it, in their dtype, into `whole`
  // (padded_numel elements; null: this rank only takes part). Waits. Call between steps.
  absl::Status GatherMaster(int unit, char* whole);
  // As GatherMaster, of one of the optimizer's arrays.
  absl::Status GatherState(int unit, int array, char* whole);
  // Waits for the reductions of the step. FAILED_PRECONDITION: a unit with trainable parameters was
  // not reduced, or its gradients were only kept, a use has not ended, or the step ended before its
  // order did; names the unit.
  absl::Status FinishReductions();
  // This rank has written the unit's shard: filled it, or applied an update to it.
  void PublishShard(int unit);
  // Units gathered ahead that nobody used; after it every slot is free. Call between steps.
  void Sweep();

  // Over the units of the step's order so far.
  uint64_t order_hash() const { return order_hash_; }
  absl::Status Progress() { return options_.collectives->Progress(); }

 private:
  struct UnitState {
    int uses = 0;
    int slot = -1;  // of the unsharded unit; -1: sharded
    Event gathered;
    bool whole = false;  // `gathered` has been waited for
    OpTiming gather_timing;
    bool gradient_open = false;  // it holds its gradient slot
    bool kept = false;           // by KeepGradient, since its last Reduce
    bool accumulated = false;    // its accumulation slot has gradients of this step
    std::vector<bool> written;
    int64_t reductions = 0;  // in this step
    bool partial = false;    // what they left is not summed over the replicas yet
    bool full = false;       // gathered in original_dtype, which is not its param_dtype
    bool resharded = false;  // its reshard slot has this rank's part of this step's parameters
    Event reduced;
    bool reducing = false;
    OpTiming reduce_timing;
    std::optional<std::vector<int>> ahead[2];  // to gather in its forward, and in its backward
    bool ahead_at_reduce = false;  // BackwardPrefetch::kPost: its backward has not looked ahead yet
  };
  struct SlotState {
    int tenant = -1;
    int64_t freed = 0;  // when, in calls
  };

  // Waits and says how many microseconds that took beyond the operation's own work, which the wait
  // may have contained.
  static absl::StatusOr<double> TimedWait(const Event& event, const OpTiming& timing,
                                          double work_us_before);
  bool Empty(int unit) const { return options_.layouts[unit].padded_numel() == 0; }
  int64_t ElementBytes(int unit) const;
  bool Trainable(int unit) const;
  std::string Name(int unit) const;
  bool Fits(const v1::Slot& slot, int unit) const;
  int LongestFree(int unit) const;
  // A slot for the unit, dropping a unit gathered ahead if `may_evict`; -1: none.
  int TakeSlot(int unit, bool may_evict);
  absl::Status Gather(int unit, int slot);
  int ReshardGroup(int unit) const;
  void Free(int unit);
  int GatheredAhead() const;
  bool ComesSoon(int unit) const;
  absl::Status TryPrefetch(int unit);
  absl::Status GatherNext(int unit, bool backward);
  absl::Status PrefetchAhead(int unit, bool backward);
  absl::Status ReduceThroughHook(const ReduceScatterOp& op);
  absl::Status GatherShard(int unit, const ShardSpan& shard, char* whole);
  absl::Status FollowOrder(int unit);
  absl::Status OpenGradient(int unit);
  absl::Status ZeroUnwritten(int unit);
  void CloseGradient(int unit);
  // Adds the gradients in the unit's gradient slot to its accumulation slot.
  void Accumulate(int unit);
  absl::Status FinishReduction(int unit);
  absl::Status SumReplicas(int unit);

  const Options options_;
  std::vector<UnitState> states_;
  std::vector<SlotState> slots_;
  std::vector<int> gradient_tenants_;     // by gradient slot; -1: free
  std::vector<int> resident_slot_;        // by unit; -1: takes turns with others
  std::vector<bool> stays_whole_;         // by unit
  std::vector<int> reshard_slot_;         // by unit; -1: none
  const std::vector<int> gradient_slot_;  // by unit; -1: the unit has no elements
  std::vector<int> accumulation_slot_;    // by unit; -1: accumulated where they are written
  ReduceHook reduce_hook_;
  int64_t calls_ = 0;
  bool in_step_ = false;  // from BeginStep to Sweep
  bool order_known_ = false;
  std::vector<int> order_;
  size_t position_ = 0;  // of the next in-order Unshard
  uint64_t order_hash_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_UNIT_EXECUTOR_H_
