// AdamW on a shard, in float32, with the arithmetic and order of operations of torch.optim.AdamW.
#ifndef TESSERA_WORKER_OPTIMIZER_H_
#define TESSERA_WORKER_OPTIMIZER_H_

#include <cstdint>

namespace tessera {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

// One update of `numel` elements. `step` counts from 1. `decay`: whether weight decay acts on them.
// Deterministic: each element's result depends on its own inputs alone.
void AdamW(const AdamWOptions& options, int64_t step, double learning_rate, bool decay,
           int64_t numel, const float* gradient, float* parameter, float* exp_avg,
           float* exp_avg_sq);

}  // namespace tessera

#endif  // TESSERA_WORKER_OPTIMIZER_H_
