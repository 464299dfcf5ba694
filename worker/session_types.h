// What a Session's calls take and give. Programs include session.h.
#ifndef TESSERA_WORKER_SESSION_TYPES_H_
#define TESSERA_WORKER_SESSION_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "worker/tensor_view.h"

namespace tessera {

// What an unsharded unit is used for. kForward, kRecompute and kBackward are part of the step's
// order, which every rank must follow; kEval is checked between ranks as it happens and is
// no part of it.
enum class Phase { kForward, kRecompute, kBackward, kEval };

struct StepOptions {
  // For this step's optimizer.
  double learning_rate = 0;
};

struct StepInfo {
  int64_t step = 0;     // from 1; the one to compute now
  int64_t attempt = 1;  // more than 1 where a lost step is repeated
};

struct MicroBatch {
  int64_t index = 0;
  // false (FSDP's no_sync): Reduce sends nothing; each rank's gradients stay unsharded where they
  // were written, in param_dtype, and later micro-batches of the step add to them. The Reduce of
  // the next one that synchronises, which every step must end with, averages the sum. Needs a
  // gradient buffer for each unit: memory.accumulate_unsynchronized.
  bool synchronize = true;
  // With synchronize and several replicas: false (FSDP2's set_requires_all_reduce) sums within the
  // shard group alone. The last micro-batch of the step must have true, and sums the whole over the
  // replicas.
  bool all_reduce = true;
  // false: no backward follows (evaluation). Legal outside a step, and inside one between its
  // micro-batches.
  bool gradients = true;
};

// What a rank adds to the commit vote.
struct StepMetrics {
  double loss_sum = 0;     // over this rank's tokens, in nats
  int64_t loss_count = 0;  // this rank's tokens
};

struct StepResult {
  int64_t step = 0;
  double loss_mean = 0;      // over all ranks, summed in rank order
  double gradient_norm = 0;  // global 2-norm of the averaged gradients
  bool non_finite = false;   // some rank saw an infinity or NaN in its reduced gradients
  // The job is drained: this was the last step. Save what is to be saved, then Finish. The same on
  // every rank.
  bool drain = false;
};

// Where to write a gradient.
struct GradientSlot {
  // param_dtype and the parameter's shape.
  TensorView view;
  // false: overwrite; the memory holds an older tenant's bytes. true: add to what this step already
  // wrote.
  bool accumulate = false;
};

// A whole parameter, in its original dtype, in memory of its own.
struct SummonedParameter {
  std::string fqn;
  DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  std::vector<char> bytes;  // row-major, little-endian
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_TYPES_H_
