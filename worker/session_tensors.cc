// A Session's parameters and gradients: where they lie, and whole ones on request.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

std::string Name(absl::string_view fqn) { return fqn.empty() ? "(root)" : std::string(fqn); }

}  // namespace

absl::StatusOr<int> SessionImpl::FindUnit(absl::string_view fqn) const {
  for (int unit = 0; unit < plan_.units_size(); ++unit) {
    if (plan_.units(unit).fqn() == fqn) return unit;
  }
  return absl::NotFoundError(absl::StrCat("no unit is called \"", fqn, "\""));
}

absl::StatusOr<SessionImpl::Place> SessionImpl::Find(absl::string_view parameter_fqn) const {
  const auto it = places_.find(parameter_fqn);
  if (it == places_.end())
    return absl::NotFoundError(absl::StrCat("no parameter is called \"", parameter_fqn, "\""));
  return it->second;
}

absl::StatusOr<SessionImpl::Place> SessionImpl::FindIn(int unit,
                                                       absl::string_view parameter_fqn) const {
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  TESSERA_ASSIGN_OR_RETURN(const Place place, Find(parameter_fqn));
  if (place.unit != unit) {
    return absl::NotFoundError(absl::StrCat("parameter \"", parameter_fqn, "\" is in unit ",
                                            Name(plan_.units(place.unit).fqn()), ", not in unit ",
                                            Name(plan_.units(unit).fqn())));
  }
  return place;
}

absl::StatusOr<int> SessionImpl::FindUnitOf(absl::string_view parameter_fqn) const {
  TESSERA_ASSIGN_OR_RETURN(const Place place, Find(parameter_fqn));
  return place.unit;
}

absl::Status SessionImpl::CheckUnit(int unit) const {
  if (unit >= 0 && unit < plan_.units_size()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("there is no unit ", unit, "; the plan has ", plan_.units_size()));
}

TensorView SessionImpl::View(const Place& place, void* data) const {
  const v1::UnitParameter& parameter = plan_.units(place.unit).parameters(place.parameter);
  return {.data = data,
          .dtype = plan_.units(place.unit).param_dtype(),
          .shape = {parameter.shape().begin(), parameter.shape().end()},
          .numel = parameter.numel()};
}

absl::StatusOr<TensorView> SessionImpl::Parameter(int unit, absl::string_view fqn) const {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_ASSIGN_OR_RETURN(const Place place, FindIn(unit, fqn));
  char* begin = executor_->Unsharded(unit);
  const int64_t numel = plan_.units(unit).parameters(place.parameter).numel();
  if (begin == nullptr && numel > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", fqn, "\" is read outside its unit's use"));
  }
  const DType dtype = executor_->WholeDType(unit);
  TensorView view =
      View(place, begin + parts_.planned.layouts[unit].parameters(place.parameter).offset() *
                              DTypeBytes(dtype));
  view.dtype = dtype;
  return view;
}

absl::StatusOr<GradientSlot> SessionImpl::GradientView(int unit, absl::string_view fqn) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_ASSIGN_OR_RETURN(const Place place, FindIn(unit, fqn));
  if (!in_step_ || !micro_batch_.gradients) {
    return Keep(absl::FailedPreconditionError(
        absl::StrCat("GradientView of \"", fqn, "\" outside a micro-batch with gradients")));
  }
  if (!plan_.units(unit).parameters(place.parameter).requires_grad()) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", fqn, "\" is frozen (requires_grad is false)"));
  }
  absl::StatusOr<UnitExecutor::GradientTarget> target =
      executor_->GradientOf(unit, place.parameter);
  TESSERA_RETURN_IF_ERROR(Keep(target.status()));
  return GradientSlot{.view = View(place, target->data), .accumulate = target->accumulate};
}

absl::Status SessionImpl::SubmitGradient(int unit, absl::string_view fqn,
                                         const TensorView& gradient, const Event& ready) {
  if (parts_.layout.device() == v1::CUDA) {
    return absl::UnimplementedError(
        "SubmitGradient copies on the CPU; on a GPU write into GradientView on Session::stream");
  }
  TESSERA_ASSIGN_OR_RETURN(const Place place, FindIn(unit, fqn));
  const TensorView expected = View(place, nullptr);
  if (gradient.dtype != expected.dtype || gradient.shape != expected.shape ||
      gradient.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of \"", fqn, "\" must have the dtype ",
                     DTypeName(expected.dtype), " and the shape of the parameter"));
  }
  TESSERA_RETURN_IF_ERROR(Keep(ready.Wait()));
  TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, GradientView(unit, fqn));
  if (slot.accumulate) {
    AddElements(gradient.data, slot.view.dtype, slot.view.numel, slot.view.dtype, slot.view.data);
  } else {
    std::memcpy(slot.view.data, gradient.data, slot.view.numel * DTypeBytes(slot.view.dtype));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SummonedParameter>> SessionImpl::SummonUnit(int unit, bool keep) {
  TESSERA_RETURN_IF_ERROR(Usable());
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  LeaveUnusedStep();
  if (in_step_)
    return Keep(absl::FailedPreconditionError("Summon inside a step; call EndStep first"));
  parts_.faults->Hit("export");
  const v1::UnitLayout& layout = parts_.planned.layouts[unit];
  const int64_t element = DTypeBytes(plan_.units(unit).original_dtype());
  std::vector<char> whole(keep ? layout.padded_numel() * element : 0);
  TESSERA_RETURN_IF_ERROR(Keep(executor_->GatherMaster(unit, keep ? whole.data() : nullptr)));
  std::vector<SummonedParameter> summoned;
  for (int p = 0; keep && p < layout.parameters_size(); ++p) {
    const v1::UnitParameter& parameter = plan_.units(unit).parameters(p);
    SummonedParameter& into = summoned.emplace_back();
    into.fqn = parameter.fqn();
    into.dtype = plan_.units(unit).original_dtype();
    into.shape = {parameter.shape().begin(), parameter.shape().end()};
    const char* begin = whole.data() + layout.parameters(p).offset() * element;
    into.bytes.assign(begin, begin + parameter.numel() * element);
  }
  return summoned;
}

absl::StatusOr<SummonedParameter> SessionImpl::Summon(absl::string_view fqn, bool writeback) {
  TESSERA_ASSIGN_OR_RETURN(const Place place, Find(fqn));
  TESSERA_ASSIGN_OR_RETURN(std::vector<SummonedParameter> unit, SummonUnit(place.unit, true));
  SummonedParameter& parameter = unit[place.parameter];
  parameter.fqn = std::string(fqn);
  if (writeback) summoned_unit_ = place.unit;
  return std::move(parameter);
}

absl::StatusOr<ShardSpan> SessionImpl::GradientShard(int unit) const {
  TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  return parts_.store->Gradients(unit);
}

}  // namespace tessera
