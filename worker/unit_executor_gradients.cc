// A unit's gradients: writing -> reducing -> reduced.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/unit_executor.h"

namespace tessera {

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

absl::Status UnitExecutor::SumReplicas(int unit) {
  UnitState& state = states_[unit];
  TESSERA_RETURN_IF_ERROR(FinishReduction(unit));
  TESSERA_ASSIGN_OR_RETURN(
      state.reduced, options_.collectives->SumReplicas(unit, gradient_slot_[unit],
                                                       options_.store->Gradients(unit), nullptr));
  state.reducing = true;
  state.partial = false;
  return absl::OkStatus();
}

absl::Status UnitExecutor::Reduce(int unit, bool all_reduce) {
  if (!Trainable(unit)) return absl::OkStatus();
  UnitState& state = states_[unit];
  const bool within_group = options_.layout.replica_count() > 1 && (!all_reduce || state.partial);
  if (within_group && state.reductions > 0 && !state.partial) {
    return absl::FailedPreconditionError(
        absl::StrCat("the gradients of unit ", Name(unit), " were averaged over all ranks in an ",
                     "earlier micro-batch of the step; all_reduce = false comes before that"));
  }
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
                                               .accumulate = state.reductions > 0,
                                               .replicate = !within_group},
                                              /*stream=*/nullptr, &state.reduce_timing));
  state.reducing = true;
  ++state.reductions;
  gradient_tenants_[slot] = -1;
  state.gradient_open = false;
  state.kept = false;
  state.partial = within_group;
  return within_group && all_reduce ? SumReplicas(unit) : absl::OkStatus();
}

void UnitExecutor::KeepGradient(int unit) { states_[unit].kept = Trainable(unit); }

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
    if (state.partial) {
      return absl::FailedPreconditionError(absl::StrCat(
          "unit ", Name(unit), " ends the step with gradients of its shard group alone; call ",
          "Reduce for it in a last micro-batch with all_reduce = true"));
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

}  // namespace tessera
