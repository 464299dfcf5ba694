// The learning rate of each step.
//
//   options.learning_rate = LearningRate(job.optimizer(), step, job.steps());
#ifndef TESSERA_WORKER_WORKLOADS_SCHEDULE_H_
#define TESSERA_WORKER_WORKLOADS_SCHEDULE_H_

#include <cstdint>

#include "tessera/v1/job.pb.h"

namespace tessera {

// lr x warm-up x factor, for `step` from 1 to `steps`. `optimizer` has its defaults filled in.
//   warm-up   min(1, step / warmup_steps); 1 without warm-up
//   factor    constant: 1
//             cosine: f + (1 - f) x (1 + cos(pi p)) / 2, with f = final_lr_fraction and
//             p = (step - warmup_steps) / (steps - warmup_steps), held within 0 and 1: the
//             factor is 1 while warming up and f at the last step. A job that ends before its
//             warm-up does never decays.
double LearningRate(const v1::OptimizerSpec& optimizer, int64_t step, int64_t steps);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_SCHEDULE_H_
