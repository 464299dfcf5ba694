// How much state an optimizer keeps beside each element. The layout places it, the worker fills it.
#ifndef TESSERA_COMMON_OPTIMIZER_STATE_H_
#define TESSERA_COMMON_OPTIMIZER_STATE_H_

#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Arrays as long as the shard: AdamW and Adam two moments, SGD one if it has momentum.
inline int OptimizerStateArrays(const v1::OptimizerSpec& optimizer) {
  if (optimizer.name() == "sgd") return optimizer.momentum() != 0 ? 1 : 0;
  return 2;
}

// Of each array's elements, by the dtype of the master that they are of.
inline v1::DType OptimizerStateDType(v1::DType original_dtype) {
  return original_dtype == v1::FLOAT64 ? v1::FLOAT64 : v1::FLOAT32;
}

}  // namespace tessera

#endif  // TESSERA_COMMON_OPTIMIZER_STATE_H_
