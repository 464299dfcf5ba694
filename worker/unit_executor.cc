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

}  // namespace

absl::StatusOr<double> UnitExecutor::TimedWait(const Event& event, const OpTiming& timing,
                                               double work_us_before) {
  const auto start = std::chrono::steady_clock::now();
  TESSERA_RETURN_IF_ERROR(event.Wait());
  const double us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  return std::max(0.0, us - (timing.work_us - work_us_before));
}

UnitExecutor::UnitExecutor(Options options)
    : options_(std::move(options)),
      states_(options_.units.size()),
      slots_(options_.layout.unsharded_slots_size()),
      gradient_tenants_(options_.layout.gradient_slots_size(), -1),
      resident_slot_(options_.units.size(), -1),
      stays_whole_(options_.units.size(), false),
      reshard_slot_(options_.units.size(), -1),
      gradient_slot_(GradientSlotsByUnit(options_.layout, options_.units, options_.layouts)),
      accumulation_slot_(options_.units.size(), -1) {
  for (int slot = 0; slot < options_.layout.accumulation_slots_size(); ++slot)
    accumulation_slot_[options_.layout.accumulation_slots(slot).unit()] = slot;
  const bool slots = options_.layout.unshard_mode() != v1::RESIDENT;
  for (int slot = 0; slot < options_.layout.unsharded_slots_size(); ++slot) {
    const v1::Slot& planned = options_.layout.unsharded_slots(slot);
    if (!planned.has_unit()) continue;
    resident_slot_[planned.unit()] = slot;
    stays_whole_[planned.unit()] = slots;
  }
  for (size_t unit = 0; unit < options_.units.size(); ++unit) {
    // The slot of level 0 is the root's alone.
    if (slots && !options_.layout.reshard_root() && options_.units[unit].fqn().empty() &&
        options_.layouts[unit].level() == 0)
      stays_whole_[unit] = true;
  }
  for (int slot = 0; slot < options_.layout.reshard_slots_size(); ++slot)
    reshard_slot_[options_.layout.reshard_slots(slot).unit()] = slot;
}

int UnitExecutor::ReshardGroup(int unit) const {
  const v1::UnitLayout& layout = options_.layouts[unit];
  return layout.has_reshard_group() ? layout.reshard_group() : options_.layout.reshard_group();
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
  const int from = state.resharded && !state.full ? reshard_slot_[unit] : -1;
  TESSERA_ASSIGN_OR_RETURN(
      state.gathered, options_.collectives->AllGather({.unit = unit,
                                                       .slot = slot,
                                                       .shard = options_.store->Parameters(unit),
                                                       .param_dtype = WholeDType(unit),
                                                       .reshard_slot = from,
                                                       .reshard_group = ReshardGroup(unit)},
                                                      /*stream=*/nullptr, &state.gather_timing));
  return absl::OkStatus();
}

void UnitExecutor::Free(int unit) {
  UnitState& state = states_[unit];
  if (in_step_ && state.whole && !state.full && !state.resharded && reshard_slot_[unit] >= 0) {
    options_.collectives->Reshard(state.slot, reshard_slot_[unit], ReshardGroup(unit),
                                  options_.layouts[unit].padded_numel() * ElementBytes(unit));
    state.resharded = true;
  }
  options_.collectives->ReleaseUnsharded(state.slot);
  slots_[state.slot] = {.tenant = -1, .freed = ++calls_};
  state.slot = -1;
  state.whole = false;
  state.gathered = Event();
  state.full = false;
}

DType UnitExecutor::WholeDType(int unit) const {
  const v1::Unit& planned = options_.units[unit];
  return states_[unit].full ? planned.original_dtype() : planned.param_dtype();
}

int UnitExecutor::GatheredAhead() const {
  int ahead = 0;
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    const UnitState& state = states_[unit];
    if (state.slot >= 0 && state.uses == 0 && !(stays_whole_[unit] && state.whole)) ++ahead;
  }
  return ahead;
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

void UnitExecutor::BeginStep() {
  position_ = 0;
  order_hash_ = kHashStart;
  in_step_ = true;
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

absl::Status UnitExecutor::Unshard(int unit, bool in_order, bool backward, bool full) {
  if (in_order) TESSERA_RETURN_IF_ERROR(FollowOrder(unit));
  UnitState& state = states_[unit];
  full = full && options_.units[unit].original_dtype() != options_.units[unit].param_dtype();
  if (state.slot >= 0 && state.full != full) {
    if (state.uses > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("unit ", Name(unit), " is in use in ", DTypeName(WholeDType(unit)),
                       " and evaluation has another dtype; end that use first"));
    }
    Free(unit);
  }
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
    state.full = full;
    TESSERA_RETURN_IF_ERROR(Gather(unit, slot));
  }
  ++state.uses;
  // Ahead of the wait: this rank's part of the next unit does not depend on the others' part of
  // this one.
  if (in_order) TESSERA_RETURN_IF_ERROR(PrefetchAhead(unit, backward));
  if (!Empty(unit) && !state.whole) {
    const double before = state.gather_timing.work_us;
    TESSERA_ASSIGN_OR_RETURN(const double wait_us,
                             TimedWait(state.gathered, state.gather_timing, before));
    state.whole = true;
    const int64_t shard_bytes = options_.store->Parameters(unit).bytes();
    options_.stats->Record(unit, v1::UNSHARD, state.gather_timing.work_us, shard_bytes);
    options_.stats->Record(unit, v1::WAIT, wait_us, shard_bytes);
  }
  return absl::OkStatus();
}

void UnitExecutor::Release(int unit) {
  UnitState& state = states_[unit];
  if (--state.uses > 0 || state.slot < 0 || stays_whole_[unit]) return;
  if (ComesSoon(unit) && GatheredAhead() <= options_.layout.prefetch()) return;
  Free(unit);
}

char* UnitExecutor::Unsharded(int unit) const {
  const UnitState& state = states_[unit];
  return state.uses > 0 && state.whole
             ? static_cast<char*>(options_.collectives->Unsharded(state.slot))
             : nullptr;
}

void UnitExecutor::PublishShard(int unit) {
  if (!Empty(unit)) options_.collectives->PublishShard(unit);
}

void UnitExecutor::Sweep() {
  in_step_ = false;
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) {
    if (states_[unit].slot >= 0 && states_[unit].uses == 0) Free(unit);
    states_[unit].resharded = false;
  }
}

}  // namespace tessera
