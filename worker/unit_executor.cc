#include "worker/unit_executor.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/gradient_slots.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// FNV-1a: order matters, and a difference anywhere shows.
constexpr uint64_t kHashStart = 14695981039346656037ull;
constexpr uint64_t kHashPrime = 1099511628211ull;

// Waits and says how long that took beyond `work_us`, which the wait may have contained.
absl::StatusOr<double> TimedWait(const Event& event, const OpTiming& timing,
                                 double work_us_before) {
  const auto start = std::chrono::steady_clock::now();
  TESSERA_RETURN_IF_ERROR(event.Wait());
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return std::max(0.0, us - (timing.work_us - work_us_before));
}

}  // namespace

UnitExecutor::UnitExecutor(Options options)
    : options_(std::move(options)),
      states_(options_.units.size()),
      slots_(options_.layout.unsharded_slots_size()),
      gradient_tenants_(options_.layout.gradient_slots_size(), -1),
      resident_slot_(options_.units.size(), -1),
      gradient_slot_(GradientSlotsByUnit(options_.layout, options_.units, options_.layouts)) {
  for (int slot = 0; slot < options_.layout.unsharded_slots_size(); ++slot) {
    const v1::Slot& planned = options_.layout.unsharded_slots(slot);
    if (planned.has_unit()) resident_slot_[planned.unit()] = slot;
  }
}

std::string UnitExecutor::Name(int unit) const {
  const std::string& fqn = options_.units[unit].fqn();
  return fqn.empty() ? "(root)" : fqn;
}

int64_t UnitExecutor::ElementBytes(int unit) const {
  return DTypeBytes(options_.units[unit].param_dtype());
}

bool UnitExecutor::Trainable(int unit) const {
  const auto& parameters = options_.units[unit].parameters();
  return !Empty(unit) &&
         std::any_of(parameters.begin(), parameters.end(),
                     [](const v1::UnitParameter& parameter) { return parameter.requires_grad(); });
}

absl::Status UnitExecutor::SetOrder(std::vector<int> order) {
  for (const int unit : order) {
    if (unit < 0 || unit >= static_cast<int>(states_.size())) {
      return absl::NotFoundError(absl::StrCat("the declared order has unit ", unit,
                                              "; the plan has units 0 to ", states_.size() - 1));
    }
  }
  order_ = std::move(order);
  order_known_ = true;
  return absl::OkStatus();
}

bool UnitExecutor::Fits(const v1::Slot& slot, int unit) const {
  const v1::UnitLayout& layout = options_.layouts[unit];
  const int64_t bytes = layout.padded_numel() * DTypeBytes(options_.units[unit].param_dtype());
  if (slot.has_unit()) return slot.unit() == unit;
  return bytes <= slot.bytes() &&
         (slot.has_level() ? slot.level() == layout.level() : layout.level() > 0);
}

int UnitExecutor::LongestFree(int unit) const {
  int best = -1;
  for (int slot = 0; slot < static_cast<int>(slots_.size()); ++slot) {
    if (slots_[slot].tenant >= 0 || !Fits(options_.layout.unsharded_slots(slot), unit)) continue;
    if (best < 0 || slots_[slot].freed < slots_[best].freed) best = slot;
  }
  return best;
}

int UnitExecutor::TakeSlot(int unit, bool may_evict) {
  if (resident_slot_[unit] >= 0) return resident_slot_[unit];
  int slot = LongestFree(unit);
  for (int victim = 0; slot < 0 && may_evict && victim < static_cast<int>(states_.size());
       ++victim) {
    const UnitState& state = states_[victim];
    if (state.slot < 0 || state.uses > 0 ||
        !Fits(options_.layout.unsharded_slots(state.slot), unit))
      continue;
    slot = state.slot;
    Free(victim);
  }
  return slot;
}

absl::Status UnitExecutor::Gather(int unit, int slot) {
  UnitState& state = states_[unit];
  slots_[slot].tenant = unit;
  state.slot = slot;
  state.whole = false;
  state.gather_timing = OpTiming();
  TESSERA_ASSIGN_OR_RETURN(state.gathered, options_.collectives->AllGather(
                                               {.unit = unit,
                                                .slot = slot,
                                                .shard = options_.store->Parameters(unit),
                                                .param_dtype = options_.units[unit].param_dtype()},
                                               /*stream=*/nullptr, &state.gather_timing));
  return absl::OkStatus();
}

void UnitExecutor::Free(int unit) {
  UnitState& state = states_[unit];
  options_.collectives->ReleaseUnsharded(state.slot);
  slots_[state.slot] = {.tenant = -1, .freed = ++calls_};
  state.slot = -1;
  state.whole = false;
  state.gathered = Event();
}

int UnitExecutor::GatheredAhead() const {
  return static_cast<int>(std::count_if(states_.begin(), states_.end(), [](const UnitState& state) {
    return state.slot >= 0 && state.uses == 0;
  }));
}

bool UnitExecutor::ComesSoon(int unit) const {
  const size_t end =
      std::min(order_.size(), position_ + static_cast<size_t>(options_.layout.prefetch()));
  for (size_t i = position_; order_known_ && i < end; ++i) {
    if (order_[i] == unit) return true;
  }
  return false;
}

absl::Status UnitExecutor::TryPrefetch(int unit) {
  if (states_[unit].slot >= 0 || Empty(unit) || GatheredAhead() >= options_.layout.prefetch())
    return absl::OkStatus();
  const int slot = TakeSlot(unit, /*may_evict=*/false);
  return slot < 0 ? absl::OkStatus() : Gather(unit, slot);
}

absl::Status UnitExecutor::Prefetch(int unit) { return TryPrefetch(unit); }

absl::Status UnitExecutor::PrefetchAhead() {
  if (!order_known_) return absl::OkStatus();
  const size_t end =
      std::min(order_.size(), position_ + static_cast<size_t>(options_.layout.prefetch()));
  for (size_t i = position_; i < end; ++i) TESSERA_RETURN_IF_ERROR(TryPrefetch(order_[i]));
  return absl::OkStatus();
}

void UnitExecutor::BeginStep() {
  position_ = 0;
  order_hash_ = kHashStart;
  for (UnitState& state : states_) state.reductions = 0;
}

absl::Status UnitExecutor::FollowOrder(int unit) {
  if (!order_known_) {
    order_.push_back(unit);
  } else if (position_ >= order_.size() || order_[position_] != unit) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "unshard ", position_ + 1, " of the step is unit ", Name(unit),
                          ", but the order of the ", "steps has ",
                          position_ < order_.size() ? Name(order_[position_]) : "none here")),
                      "ORDER_MISMATCH");
  }
  ++position_;
  order_hash_ = (order_hash_ ^ static_cast<uint64_t>(unit + 1)) * kHashPrime;
  return absl::OkStatus();
}

absl::Status UnitExecutor::Unshard(int unit, bool in_order) {
  if (in_order) TESSERA_RETURN_IF_ERROR(FollowOrder(unit));
  UnitState& state = states_[unit];
  if (!Empty(unit) && state.slot < 0) {
    const int slot = TakeSlot(unit, /*may_evict=*/true);
    if (slot < 0) {
      std::vector<std::string> live;
      for (const SlotState& other : slots_) {
        if (other.tenant >= 0) live.push_back(Name(other.tenant));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "no slot for unit ", Name(unit), " while these are unsharded: ",
          absl::StrJoin(live, ", "), "; end a use first or raise memory.max_live_units"));
    }
    TESSERA_RETURN_IF_ERROR(Gather(unit, slot));
  }
  ++state.uses;
  // Ahead of the wait: this rank's part of the next unit does not depend on the others' part of
  // this one.
  if (in_order) TESSERA_RETURN_IF_ERROR(PrefetchAhead());
  if (!Empty(unit) && !state.whole) {
    const double before = state.gather_timing.work_us;
    TESSERA_ASSIGN_OR_RETURN(const double wait_us,
                             TimedWait(state.gathered, state.gather_timing, before));
    state.whole = true;
    const int64_t shard_bytes =
        options_.layouts[unit].shard_numel() * static_cast<int64_t>(sizeof(float));
    options_.stats->Record(unit, v1::UNSHARD, state.gather_timing.work_us, shard_bytes);
    options_.stats->Record(unit, v1::WAIT, wait_us, shard_bytes);
  }
  return absl::OkStatus();
}

void UnitExecutor::Release(int unit) {
  UnitState& state = states_[unit];
  if (--state.uses > 0 || state.slot < 0) return;
  if (ComesSoon(unit) && GatheredAhead() <= options_.layout.prefetch()) return;
  Free(unit);
}

char* UnitExecutor::Unsharded(int unit) const {
  const UnitState& state = states_[unit];
  return state.uses > 0 && state.whole
             ? static_cast<char*>(options_.collectives->Unsharded(state.slot))
             : nullptr;
}

absl::Status UnitExecutor::OpenGradient(int unit) {
  UnitState& state = states_[unit];
  if (state.gradient_open) return absl::OkStatus();
  const int slot = gradient_slot_[unit];
  if (slot < 0) {
    return absl::InternalError(absl::StrCat("the layout has no gradient buffer for unit ",
                                            Name(unit),
                                            "; are agent and coordinator of one build?"));
  }
  if (gradient_tenants_[slot] >= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no gradient buffer for unit ", Name(unit), " while unit ", Name(gradient_tenants_[slot]),
        " has gradients in it; reduce that one first, or give "
        "each unit a buffer with memory.accumulate_unsynchronized"));
  }
  gradient_tenants_[slot] = unit;
  state.gradient_open = true;
  state.written.assign(options_.units[unit].parameters_size(), false);
  TESSERA_ASSIGN_OR_RETURN(const Event free,
                           options_.collectives->AcquireGradient(unit, slot, nullptr));
  TESSERA_ASSIGN_OR_RETURN(const double wait_us, TimedWait(free, OpTiming(), 0));
  options_.stats->Record(unit, v1::REDUCE_WAIT, wait_us, 0);
  return absl::OkStatus();
}

absl::StatusOr<UnitExecutor::GradientTarget> UnitExecutor::GradientOf(int unit, int parameter) {
  TESSERA_RETURN_IF_ERROR(OpenGradient(unit));
  UnitState& state = states_[unit];
  GradientTarget target;
  target.data = static_cast<char*>(options_.collectives->Gradient(gradient_slot_[unit])) +
                options_.layouts[unit].parameters(parameter).offset() * ElementBytes(unit);
  target.accumulate = state.written[parameter];
  state.written[parameter] = true;
  return target;
}

absl::Status UnitExecutor::ZeroUnwritten(int unit) {
  const UnitState& state = states_[unit];
  const v1::UnitLayout& layout = options_.layouts[unit];
  const int64_t bytes = ElementBytes(unit);
  const auto zero = [&](int64_t begin, int64_t end) {
    if (begin == end) return absl::OkStatus();
    return options_.collectives->ZeroGradient(gradient_slot_[unit], begin * bytes,
                                              (end - begin) * bytes, /*stream=*/nullptr);
  };
  int64_t zeroed_from = 0;  // end of the last gradient that stays
  for (int p = 0; p < layout.parameters_size(); ++p) {
    if (!state.written[p]) continue;
    TESSERA_RETURN_IF_ERROR(zero(zeroed_from, layout.parameters(p).offset()));
    zeroed_from = layout.parameters(p).offset() + options_.units[unit].parameters(p).numel();
  }
  return zero(zeroed_from, layout.padded_numel());
}

absl::Status UnitExecutor::FinishReduction(int unit) {
  UnitState& state = states_[unit];
  if (!state.reducing) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const double wait_us, TimedWait(state.reduced, state.reduce_timing,
                                                           state.reduce_timing.work_us));
  state.reducing = false;
  const int64_t bytes = options_.layouts[unit].padded_numel() * ElementBytes(unit);
  options_.stats->Record(unit, v1::REDUCE, state.reduce_timing.work_us, bytes);
  options_.stats->Record(unit, v1::REDUCE_WAIT, wait_us, 0);
  return absl::OkStatus();
}

absl::Status UnitExecutor::Reduce(int unit) {
  if (!Trainable(unit)) return absl::OkStatus();
  UnitState& state = states_[unit];
  // The one of an earlier micro-batch comes first: this one adds to it.
  TESSERA_RETURN_IF_ERROR(FinishReduction(unit));
  TESSERA_RETURN_IF_ERROR(OpenGradient(unit));
  TESSERA_RETURN_IF_ERROR(ZeroUnwritten(unit));
  const int slot = gradient_slot_[unit];
  state.reduce_timing = OpTiming();
  TESSERA_ASSIGN_OR_RETURN(state.reduced, options_.collectives->ReduceScatter(
                                              {.unit = unit,
                                               .gradient_slot = slot,
                                               .shard = options_.store->Gradients(unit),
                                               .gradient_dtype = options_.units[unit].param_dtype(),
                                               .reduce_dtype = options_.units[unit].reduce_dtype(),
                                               .accumulate = state.reductions > 0},
                                              /*stream=*/nullptr, &state.reduce_timing));
  state.reducing = true;
  ++state.reductions;
  gradient_tenants_[slot] = -1;
  state.gradient_open = false;
  state.kept = false;
  return absl::OkStatus();
}

void UnitExecutor::KeepGradient(int unit) { states_[unit].kept = Trainable(unit); }

void UnitExecutor::PublishShard(int unit) {
  if (!Empty(unit)) options_.collectives->PublishShard(unit);
}

absl::Status UnitExecutor::GatherMaster(int unit, char* whole) {
  if (Empty(unit)) return absl::OkStatus();
  const int slot = gradient_slot_[unit];
  if (slot < 0 || gradient_tenants_[slot] >= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no buffer to gather unit ", Name(unit), " through; end the step first"));
  }
  return options_.collectives->GatherShards(unit, slot, options_.store->Parameters(unit), whole);
}

absl::Status UnitExecutor::FinishReductions() {
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) {
    const UnitState& state = states_[unit];
    if (state.uses > 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "unit ", Name(unit), " is still in use at the end of the step; drop its lease"));
    }
    if (state.kept) {
      return absl::FailedPreconditionError(absl::StrCat(
          "unit ", Name(unit), " ends the step with gradients of micro-batches that were not ",
          "synchronised; call Reduce for it in a last micro-batch with synchronize = true"));
    }
    if (state.gradient_open || (Trainable(unit) && state.reductions == 0)) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", Name(unit), " was not reduced in this step; call Reduce"));
    }
    TESSERA_RETURN_IF_ERROR(FinishReduction(unit));
  }
  if (order_known_ && position_ != order_.size()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the step ended after ", position_, " unshards; the order of the steps has ",
            order_.size(), ", next unit ", Name(order_[position_]))),
        "ORDER_MISMATCH");
  }
  order_known_ = true;
  return absl::OkStatus();
}

void UnitExecutor::Sweep() {
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) {
    if (states_[unit].slot >= 0 && states_[unit].uses == 0) Free(unit);
  }
}

}  // namespace tessera
