#include "coordinator/plan_runnable.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/parameter_groups.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// The job's field, or the unit's where it has a setting of its own.
std::string FieldOf(const v1::Unit& unit, bool overridden, absl::string_view setting) {
  if (!overridden) return absl::StrCat("mixed_precision.", setting);
  return absl::StrCat(unit.fqn().empty() ? "root" : unit.fqn(), ".", setting);
}

// GPUs take masters in float32 that are gathered and reduced in float32, bfloat16 or float16, and
// whose reduced gradients go back to float32. By field, since it is the job file that has to
// change.
absl::Status CheckOnGpu(const v1::Unit& unit) {
  if (unit.original_dtype() != v1::FLOAT32) {
    return InvalidField(
        unit.parameters().empty() ? "model" : unit.parameters(0).fqn(),
        absl::StrCat("is ", DTypeName(unit.original_dtype()),
                     "; on device cuda only float32 models can be trained yet; give cpu"));
  }
  const auto check = [&](DType dtype, bool overridden, absl::string_view setting) -> absl::Status {
    if (dtype != v1::FLOAT64) return absl::OkStatus();
    return InvalidField(FieldOf(unit, overridden, setting),
                        "float64 is not available on device cuda; use float32, bfloat16 or "
                        "float16, or give device cpu");
  };
  TESSERA_RETURN_IF_ERROR(
      check(unit.param_dtype(), unit.overrides().has_param_dtype(), "param_dtype"));
  TESSERA_RETURN_IF_ERROR(
      check(unit.reduce_dtype(), unit.overrides().has_reduce_dtype(), "reduce_dtype"));
  if (unit.gradient_dtype() != unit.original_dtype()) {
    return InvalidField(FieldOf(unit, unit.overrides().has_keep_grads_in_reduce_dtype(),
                                "keep_grads_in_reduce_dtype"),
                        "is not available on device cuda yet, where reduced gradients are kept in "
                        "float32; give false");
  }
  if (unit.unsynced_gradient_dtype() != unit.param_dtype()) {
    return InvalidField(
        FieldOf(unit, unit.overrides().has_unsynced_grad_dtype(), "unsynced_grad_dtype"),
        "\"reduce\" is not available on device cuda yet; give compute");
  }
  return absl::OkStatus();
}

absl::Status CheckInputs(const v1::Unit& unit) {
  if (!unit.overrides().has_cast_forward_inputs()) return absl::OkStatus();
  return InvalidField(FieldOf(unit, true, "cast_forward_inputs"),
                      "is not available yet: the program casts its inputs itself; drop it");
}

absl::Status CheckUnit(const v1::Unit& unit, bool on_gpu) {
  if (on_gpu) TESSERA_RETURN_IF_ERROR(CheckOnGpu(unit));
  return CheckInputs(unit);
}

// Parameters in no unit are a program's own affair (worker/ignored_parameters.h).
absl::Status CheckInNoUnit(const v1::JobSpec& resolved, const v1::Plan& plan) {
  if (plan.units_size() == 0) {
    return InvalidField("wrap.root_unit",
                        "by_policy leaves every parameter in no unit; give always, or a policy "
                        "that makes a unit");
  }
  if (resolved.workload() != "gpt") return absl::OkStatus();
  if (plan.ignored_size() > 0) {
    return InvalidField("wrap.ignore",
                        absl::StrCat("leaves \"", plan.ignored(0),
                                     "\" in no unit, and the workload gpt trains all of its "
                                     "parameters; drop it, or attach a program that trains its "
                                     "own"));
  }
  if (plan.units().rbegin()->fqn().empty()) return absl::OkStatus();
  return InvalidField("wrap.root_unit",
                      "by_policy leaves the root out, and the workload gpt trains all of its "
                      "parameters; give always, or attach a program that trains its own");
}

absl::Status CheckJob(const v1::MixedPrecisionSpec& precision) {
  if (!precision.cast_forward_inputs()) return absl::OkStatus();
  return InvalidField("mixed_precision.cast_forward_inputs",
                      "is not available yet: the program casts its inputs itself; give false");
}

}  // namespace

absl::Status CheckPlanRunnable(const v1::JobSpec& resolved, const v1::Plan& plan) {
  TESSERA_RETURN_IF_ERROR(CheckInNoUnit(resolved, plan));
  TESSERA_ASSIGN_OR_RETURN(const ParameterGroups groups,
                           ParameterGroups::Create(resolved.optimizer()));
  TESSERA_RETURN_IF_ERROR(groups.CheckUsed(plan));
  TESSERA_RETURN_IF_ERROR(CheckJob(resolved.mixed_precision()));
  const bool on_gpu = resolved.device() == "cuda";
  for (const v1::Unit& unit : plan.units()) TESSERA_RETURN_IF_ERROR(CheckUnit(unit, on_gpu));
  return absl::OkStatus();
}

}  // namespace tessera
