// The coefficients of one AdamW or Adam update on a GPU.
//
//   const AdamWRun run = AdamWRunOf(options, {.update = 7, .learning_rate = 1e-3}, arrays);
//   api->adamw(run, stream);
//
// Thread-safety: a pure function.
#ifndef TESSERA_WORKER_COLLECTIVES_NCCL_ADAMW_H_
#define TESSERA_WORKER_COLLECTIVES_NCCL_ADAMW_H_

#include "worker/collectives/nccl_kernels.h"
#include "worker/optimizer.h"

namespace tessera {

// What UpdateElements(options, step, arrays) would do, for LaunchAdamW. options.kind is kAdamW or
// kAdam; the arrays are device memory.
AdamWRun AdamWRunOf(const OptimizerOptions& options, const UpdateStep& step,
                    const UpdateRun& arrays);

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_NCCL_ADAMW_H_
