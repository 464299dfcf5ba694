// How much state an optimizer keeps beside each element. The layout places it, the worker fills it.
#ifndef TESSERA_COMMON_OPTIMIZER_STATE_H_
#define TESSERA_COMMON_OPTIMIZER_STATE_H_

#include "tessera/v1/job.pb.h"

namespace tessera {

// float32 arrays as long as the shard: AdamW and Adam two moments, SGD one if it has momentum.
inline int OptimizerStateArrays(const v1::OptimizerSpec& optimizer) {
  if (optimizer.name() == "sgd") return optimizer.momentum() != 0 ? 1 : 0;
  return 2;
}

}  // namespace tessera

#endif  // TESSERA_COMMON_OPTIMIZER_STATE_H_
