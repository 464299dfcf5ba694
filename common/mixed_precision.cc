#include "common/mixed_precision.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// `otherwise` where nothing is said.
absl::StatusOr<DType> Choose(const std::string& name, absl::string_view field, DType otherwise) {
  if (name.empty()) return otherwise;
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (!dtype.ok()) return InvalidField(field, dtype.status().message());
  if (IsTrainable(*dtype)) return *dtype;
  return InvalidField(
      field, absl::StrCat(DTypeName(*dtype),
                          " cannot be trained in; use float64, float32, float16 or bfloat16"));
}

absl::Status CheckOriginal(DType original) {
  if (IsTrainable(original)) return absl::OkStatus();
  return InvalidField("original_dtype", absl::StrCat(DTypeName(original), " cannot be trained"));
}

// What follows from param and reduce.
absl::Status SetGradients(const v1::MixedPrecisionSpec& spec, UnitDTypes* dtypes) {
  TESSERA_ASSIGN_OR_RETURN(const bool keep, KeepsGradsInReduceDType(spec));
  dtypes->gradient = keep ? dtypes->reduce : dtypes->original;
  const std::string& unsynced = spec.unsynced_grad_dtype();
  if (!unsynced.empty() && unsynced != "compute" && unsynced != "reduce") {
    return InvalidField("mixed_precision.unsynced_grad_dtype",
                        absl::StrCat("\"", unsynced, "\" is unknown; use compute or reduce"));
  }
  dtypes->unsynced_gradient = unsynced == "reduce" ? dtypes->reduce : dtypes->param;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UnitDTypes> ResolveDTypes(DType original, const v1::MixedPrecisionSpec& spec) {
  TESSERA_RETURN_IF_ERROR(CheckOriginal(original));
  UnitDTypes dtypes{.original = original};
  TESSERA_ASSIGN_OR_RETURN(dtypes.param,
                           Choose(spec.param_dtype(), "mixed_precision.param_dtype", original));
  TESSERA_ASSIGN_OR_RETURN(dtypes.reduce,
                           Choose(spec.reduce_dtype(), "mixed_precision.reduce_dtype",
                                  spec.param_dtype().empty() ? original : dtypes.param));
  TESSERA_RETURN_IF_ERROR(SetGradients(spec, &dtypes));
  return dtypes;
}

absl::StatusOr<UnitDTypes> ChangeOriginalDType(const UnitDTypes& resolved, DType changed,
                                               const v1::MixedPrecisionSpec& spec) {
  TESSERA_RETURN_IF_ERROR(CheckOriginal(changed));
  UnitDTypes dtypes = resolved;
  if (changed == resolved.original) return dtypes;
  dtypes.original = changed;
  if (spec.param_dtype().empty()) {
    dtypes.param = changed;
    if (spec.reduce_dtype().empty()) dtypes.reduce = changed;
  }
  TESSERA_RETURN_IF_ERROR(SetGradients(spec, &dtypes));
  return dtypes;
}

absl::StatusOr<DType> ResolveBufferDType(DType original, const v1::MixedPrecisionSpec& spec) {
  TESSERA_ASSIGN_OR_RETURN(const DType dtype,
                           Choose(spec.buffer_dtype(), "mixed_precision.buffer_dtype", original));
  return IsFloatingPoint(original) ? dtype : original;
}

absl::StatusOr<bool> KeepsGradsInReduceDType(const v1::MixedPrecisionSpec& spec) {
  if (spec.has_keep_grads_in_reduce_dtype() && spec.has_keep_low_precision_grads() &&
      spec.keep_grads_in_reduce_dtype() != spec.keep_low_precision_grads()) {
    return InvalidField("mixed_precision.keep_low_precision_grads",
                        "contradicts keep_grads_in_reduce_dtype, which is the same setting under "
                        "another name; give one of them");
  }
  return spec.keep_grads_in_reduce_dtype() || spec.keep_low_precision_grads();
}

}  // namespace tessera
