// Which dtypes a unit lives in. FSDP's rule (pytorch #90660): with param_dtype alone given,
// gradients are reduced in it too; otherwise what is not given is as the original. Neither is ever
// unset afterwards, and mixed precision is on exactly where they differ from the original dtype.
//
//   TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes, ResolveDTypes(v1::FLOAT32, spec));
#ifndef TESSERA_COMMON_MIXED_PRECISION_H_
#define TESSERA_COMMON_MIXED_PRECISION_H_

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct UnitDTypes {
  DType original = v1::DTYPE_UNSPECIFIED;
  DType param = v1::DTYPE_UNSPECIFIED;   // of the unsharded unit: what is gathered and computed in
  DType reduce = v1::DTYPE_UNSPECIFIED;  // of the reduce-scatter

  bool mixed_param() const { return param != original; }
  bool mixed_reduce() const { return reduce != original; }
};

// INVALID_ARGUMENT: mixed_precision.param_dtype or .reduce_dtype is no dtype, or not one that can
// be trained in; or `original` is not (Field(status) says which).
absl::StatusOr<UnitDTypes> ResolveDTypes(DType original, const v1::MixedPrecisionSpec& spec);

}  // namespace tessera

#endif  // TESSERA_COMMON_MIXED_PRECISION_H_
