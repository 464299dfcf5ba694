// What a checkpoint holds beside the shards: where training stands.
#ifndef TESSERA_WORKER_TRAINING_STATE_H_
#define TESSERA_WORKER_TRAINING_STATE_H_

#include <cstdint>
#include <string>

namespace tessera {

struct TrainingState {
  int64_t step = 0;              // the last one committed
  int64_t updates = 0;           // the optimizer's own count: steps that were not skipped
  int64_t data_position = 0;     // sequences consumed, over all ranks
  double loss_scale = 1;         // of the next step
  int64_t loss_scale_steps = 0;  // in a row with finite gradients
  // The checkpoint that it was loaded from; "": none, or not any more.
  std::string path = "";
};

}  // namespace tessera

#endif  // TESSERA_WORKER_TRAINING_STATE_H_
