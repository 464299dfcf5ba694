// Of what dtype the parts of a planned unit are. Plans that do not say have the defaults.
#ifndef TESSERA_COMMON_UNIT_DTYPES_H_
#define TESSERA_COMMON_UNIT_DTYPES_H_

#include "tessera/v1/plan.pb.h"

namespace tessera {

// Of the master shard.
inline v1::DType OriginalDType(const v1::Unit& unit) {
  return unit.original_dtype() == v1::DTYPE_UNSPECIFIED ? v1::FLOAT32 : unit.original_dtype();
}

// Of the reduced gradient shard: the master's, or what gradients are reduced in.
inline v1::DType GradientDType(const v1::Unit& unit) {
  const v1::DType dtype = unit.gradient_dtype();
  return dtype == v1::DTYPE_UNSPECIFIED ? OriginalDType(unit) : dtype;
}

// Of unsharded gradients over micro-batches that do not synchronise: param_dtype, in which backward
// writes them, or what gradients are reduced in.
inline v1::DType UnsyncedGradientDType(const v1::Unit& unit) {
  const v1::DType dtype = unit.unsynced_gradient_dtype();
  return dtype == v1::DTYPE_UNSPECIFIED ? unit.param_dtype() : dtype;
}

}  // namespace tessera

#endif  // TESSERA_COMMON_UNIT_DTYPES_H_
