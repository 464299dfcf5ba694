// Which dtypes a unit lives in. FSDP's rule (pytorch #90660): with param_dtype alone given,
// gradients are reduced in it too; otherwise what is not given is as the original. Neither is ever
// unset afterwards, and mixed precision is on exactly where they differ from the original dtype.
//
//   TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes, ResolveDTypes(v1::FLOAT32, spec));
//
// A unit is gathered and computes in `param`; its gradients are cast to `reduce` before they are
// reduced, and after that to `gradient`. keep_grads_in_reduce_dtype (FSDP's
// keep_low_precision_grads) means what FSDP documents, and that for every strategy: reduced
// gradients stay in the reduce dtype. (FSDP's code gives the compute dtype where gradients are
// sharded.) Gradients of micro-batches that do not synchronise are accumulated in the compute dtype
// as FSDP1 does, or in the reduce dtype as FSDP2 does.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COMMON_MIXED_PRECISION_H_
#define TESSERA_COMMON_MIXED_PRECISION_H_

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct UnitDTypes {
  DType original = v1::DTYPE_UNSPECIFIED;
  DType param = v1::DTYPE_UNSPECIFIED;     // of the unsharded unit: gathered and computed in
  DType reduce = v1::DTYPE_UNSPECIFIED;    // of the reduce-scatter
  DType gradient = v1::DTYPE_UNSPECIFIED;  // of the reduced gradient shard
  DType unsynced_gradient = v1::DTYPE_UNSPECIFIED;  // of what is accumulated without reducing

  bool mixed_param() const { return param != original; }
  bool mixed_reduce() const { return reduce != original; }
  bool cast_before_reduce() const { return param != reduce; }
  bool cast_after_reduce() const { return reduce != gradient; }
};

// INVALID_ARGUMENT: mixed_precision.param_dtype or .reduce_dtype is no dtype, or not one that can
// be trained in; the two names of keep_grads_in_reduce_dtype contradict each other;
// unsynced_grad_dtype is unknown; or `original` cannot be trained (Field(status) says which).
absl::StatusOr<UnitDTypes> ResolveDTypes(DType original, const v1::MixedPrecisionSpec& spec);

// What becomes of `resolved` when the model is converted to `changed` before its first use
// (model.half() after construction; pytorch #90838, mended by #91192): what `spec` gave stays,
// everything else follows the new dtype. INVALID_ARGUMENT: as ResolveDTypes.
absl::StatusOr<UnitDTypes> ChangeOriginalDType(const UnitDTypes& resolved, DType changed,
                                               const v1::MixedPrecisionSpec& spec);

// Of a buffer: mixed_precision.buffer_dtype for floating-point ones, else its own. Cast once and
// kept; checkpoints have the original. INVALID_ARGUMENT: buffer_dtype is no dtype, or not one that
// can be trained in.
absl::StatusOr<DType> ResolveBufferDType(DType original, const v1::MixedPrecisionSpec& spec);

// keep_grads_in_reduce_dtype under either of its names. INVALID_ARGUMENT: they contradict.
absl::StatusOr<bool> KeepsGradsInReduceDType(const v1::MixedPrecisionSpec& spec);

}  // namespace tessera

#endif  // TESSERA_COMMON_MIXED_PRECISION_H_
