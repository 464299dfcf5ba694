// What a Session's calls take and give. Programs include session.h.
#ifndef TESSERA_WORKER_SESSION_TYPES_H_
#define TESSERA_WORKER_SESSION_TYPES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/dtype.h"
#include "worker/tensor_view.h"

namespace tessera {

// Whether an error of a Session's call says that the generation has ended (a rank was lost) and the
// job goes on: BeginStep joins the next one, and says with which step.
bool GenerationEnded(const absl::Status& status);

// What an unsharded unit is used for. kForward, kRecompute and kBackward are part of the step's
// order, which every rank must follow; kEval is checked between ranks as it happens and is
// no part of it.
enum class Phase { kForward, kRecompute, kBackward, kEval };

struct StepOptions {
  // For this step's optimizer.
  double learning_rate = 0;
  // Where it depends on the step, in place of learning_rate: which step it is may be known only
  // once it is begun (StepInfo.recovered).
  std::function<double(int64_t step)> learning_rate_at = nullptr;
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
  double loss_mean = 0;  // over all ranks, summed in rank order
  // Of all averaged gradients (optimizer.clip_norm_type), those of AllReduceGradients included,
  // without the loss scale.
  double gradient_norm = 0;
  // By what the optimizer multiplied the gradients, beside dividing them by the loss scale
  // (optimizer.clip_norm); for programs that update parameters of their own.
  double clip_coefficient = 1;
  // Some rank saw an infinity or NaN in its reduced gradients: no rank's optimizer took the step.
  bool non_finite = false;
  // The job is drained: this was the last step. Save what is to be saved, then Finish. The same on
  // every rank.
  bool drain = false;
};

struct StepInfo {
  int64_t step = 0;     // from 1; the one to compute now
  int64_t attempt = 1;  // more than 1 where a lost step is repeated
  // mixed_precision.loss_scale: gradients are to be those of so many times the loss. The optimizer
  // divides them by it, and gradient_norm is of the quotient.
  double loss_scale = 1;
  // Once after a rank was lost: of the last step committed before, the same on all ranks, for a
  // loop to act on as if EndStep had given it (some rank may not have come to that). A program that
  // has no step left to compute calls Finish next.
  std::optional<StepResult> recovered = std::nullopt;
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
