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

}  // namespace

absl::StatusOr<UnitDTypes> ResolveDTypes(DType original, const v1::MixedPrecisionSpec& spec) {
  if (!IsTrainable(original)) {
    return InvalidField("original_dtype", absl::StrCat(DTypeName(original), " cannot be trained"));
  }
  UnitDTypes dtypes{.original = original};
  TESSERA_ASSIGN_OR_RETURN(dtypes.param,
                           Choose(spec.param_dtype(), "mixed_precision.param_dtype", original));
  TESSERA_ASSIGN_OR_RETURN(dtypes.reduce,
                           Choose(spec.reduce_dtype(), "mixed_precision.reduce_dtype",
                                  spec.param_dtype().empty() ? original : dtypes.param));
  return dtypes;
}

}  // namespace tessera
