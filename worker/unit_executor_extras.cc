// UnitExecutor: what it gathers ahead, reductions through a hook, and whole shards between steps.
#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/unit_executor.h"

namespace tessera {

void UnitExecutor::SetPrefetch(int unit, bool backward, std::vector<int> ahead) {
  states_[unit].ahead[backward ? 1 : 0] = std::move(ahead);
}

absl::Status UnitExecutor::GatherNext(int unit, bool backward) {
  const std::optional<std::vector<int>>& ahead = states_[unit].ahead[backward ? 1 : 0];
  if (ahead.has_value()) {
    for (const int next : *ahead) TESSERA_RETURN_IF_ERROR(TryPrefetch(next));
    return absl::OkStatus();
  }
  if (!order_known_) return absl::OkStatus();
  const size_t end =
      std::min(order_.size(), position_ + static_cast<size_t>(options_.layout.prefetch()));
  for (size_t i = position_; i < end; ++i) TESSERA_RETURN_IF_ERROR(TryPrefetch(order_[i]));
  return absl::OkStatus();
}

absl::Status UnitExecutor::PrefetchAhead(int unit, bool backward) {
  const bool now = !backward || options_.backward_prefetch == BackwardPrefetch::kPre;
  states_[unit].ahead_at_reduce = !now && options_.backward_prefetch == BackwardPrefetch::kPost;
  return now ? GatherNext(unit, backward) : absl::OkStatus();
}

absl::Status UnitExecutor::PrefetchAfter(int unit) {
  return std::exchange(states_[unit].ahead_at_reduce, false) ? GatherNext(unit, /*backward=*/true)
                                                             : absl::OkStatus();
}

absl::Status UnitExecutor::ReduceThroughHook(const ReduceScatterOp& op) {
  const auto start = std::chrono::steady_clock::now();
  TESSERA_RETURN_IF_ERROR(reduce_hook_(op, options_.layouts[op.unit].padded_numel()));
  states_[op.unit].reduced = Event();
  states_[op.unit].reduce_timing.work_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return absl::OkStatus();
}

absl::StatusOr<int> UnitExecutor::FreeGradientSlot() const {
  int longest = -1;
  for (int slot = 0; slot < options_.layout.gradient_slots_size(); ++slot) {
    if (gradient_tenants_[slot] >= 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", Name(gradient_tenants_[slot]),
                       " has gradients that are not reduced; call Reduce for it first"));
    }
    if (longest < 0 || options_.layout.gradient_slots(slot).bytes() >
                           options_.layout.gradient_slots(longest).bytes())
      longest = slot;
  }
  if (longest >= 0) return longest;
  return absl::FailedPreconditionError("the plan has no unit with elements, so no buffer to use");
}

absl::Status UnitExecutor::GatherShard(int unit, const ShardSpan& shard, char* whole) {
  if (Empty(unit)) return absl::OkStatus();
  const int slot = gradient_slot_[unit];
  if (slot < 0 || gradient_tenants_[slot] >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no buffer to gather unit ", Name(unit), " through; end the step first"));
  }
  return options_.collectives->GatherShards(unit, slot, shard, whole);
}

absl::Status UnitExecutor::GatherMaster(int unit, char* whole) {
  return GatherShard(unit, options_.store->Parameters(unit), whole);
}

absl::Status UnitExecutor::GatherState(int unit, int array, char* whole) {
  return GatherShard(unit, options_.store->State(unit, array), whole);
}

}  // namespace tessera
