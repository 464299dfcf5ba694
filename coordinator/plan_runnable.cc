#include "coordinator/plan_runnable.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// The job's field, or the unit's where it has a setting of its own.
std::string FieldOf(const v1::Unit& unit, bool overridden, absl::string_view setting) {
  if (!overridden) return absl::StrCat("mixed_precision.", setting);
  return absl::StrCat(unit.fqn().empty() ? "root" : unit.fqn(), ".", setting);
}

absl::Status CheckParamAndReduce(const v1::Unit& unit) {
  // By field, since it is the job file that has to change.
  if (unit.original_dtype() != v1::FLOAT32) {
    return InvalidField(unit.parameters().empty() ? "model" : unit.parameters(0).fqn(),
                        absl::StrCat("is ", DTypeName(unit.original_dtype()),
                                     "; only float32 models can be trained yet"));
  }
  const auto check = [&](DType dtype, bool overridden, absl::string_view setting) -> absl::Status {
    if (dtype == v1::FLOAT32 || dtype == v1::BFLOAT16 || dtype == v1::FLOAT16) {
      return absl::OkStatus();
    }
    return InvalidField(
        FieldOf(unit, overridden, setting),
        absl::StrCat(DTypeName(dtype), " is not available yet; use float32, bfloat16 or float16"));
  };
  TESSERA_RETURN_IF_ERROR(
      check(unit.param_dtype(), unit.overrides().has_param_dtype(), "param_dtype"));
  return check(unit.reduce_dtype(), unit.overrides().has_reduce_dtype(), "reduce_dtype");
}

absl::Status CheckGradients(const v1::Unit& unit) {
  if (unit.gradient_dtype() != unit.original_dtype()) {
    return InvalidField(FieldOf(unit, unit.overrides().has_keep_grads_in_reduce_dtype(),
                                "keep_grads_in_reduce_dtype"),
                        "is not available yet: reduced gradients are kept in float32; give false");
  }
  if (unit.unsynced_gradient_dtype() != unit.param_dtype()) {
    return InvalidField(
        FieldOf(unit, unit.overrides().has_unsynced_grad_dtype(), "unsynced_grad_dtype"),
        "\"reduce\" is not available yet; give compute");
  }
  return absl::OkStatus();
}

absl::Status CheckBuffersAndInputs(const v1::Unit& unit) {
  for (const v1::UnitBuffer& buffer : unit.buffers()) {
    if (buffer.buffer_dtype() == buffer.original_dtype()) continue;
    return InvalidField(
        FieldOf(unit, unit.overrides().has_buffer_dtype(), "buffer_dtype"),
        absl::StrCat("would cast \"", buffer.fqn(), "\", which is not available yet; drop it"));
  }
  if (unit.overrides().has_cast_forward_inputs()) {
    return InvalidField(FieldOf(unit, true, "cast_forward_inputs"),
                        "is not available yet: the program casts its inputs itself; drop it");
  }
  return absl::OkStatus();
}

absl::Status CheckUnit(const v1::Unit& unit) {
  TESSERA_RETURN_IF_ERROR(CheckParamAndReduce(unit));
  TESSERA_RETURN_IF_ERROR(CheckGradients(unit));
  return CheckBuffersAndInputs(unit);
}

absl::Status CheckJob(const v1::MixedPrecisionSpec& precision) {
  if (precision.loss_scale() != "none" && precision.has_loss_scale()) {
    return InvalidField("mixed_precision.loss_scale", absl::StrCat("\"", precision.loss_scale(),
                                                                   "\" is not available yet; give "
                                                                   "none"));
  }
  if (precision.divide_factor() != 0) {
    return InvalidField("mixed_precision.divide_factor",
                        absl::StrCat("is ", precision.divide_factor(),
                                     ", which is not available yet; give 0: the number of ranks"));
  }
  if (!precision.cast_forward_inputs()) return absl::OkStatus();
  return InvalidField("mixed_precision.cast_forward_inputs",
                      "is not available yet: the program casts its inputs itself; give false");
}

}  // namespace

absl::Status CheckPlanRunnable(const v1::JobSpec& resolved, const v1::Plan& plan) {
  if (plan.ignored_size() > 0) {
    return InvalidField("wrap.ignore", absl::StrCat("leaves \"", plan.ignored(0),
                                                    "\" in no unit, which is not available yet; "
                                                    "every parameter must be in one"));
  }
  if (plan.units_size() == 0 || !plan.units().rbegin()->fqn().empty()) {
    return InvalidField("wrap.root_unit",
                        "by_policy leaves the root out, which is not available yet; give always");
  }
  TESSERA_RETURN_IF_ERROR(CheckJob(resolved.mixed_precision()));
  for (const v1::Unit& unit : plan.units()) TESSERA_RETURN_IF_ERROR(CheckUnit(unit));
  return absl::OkStatus();
}

}  // namespace tessera
