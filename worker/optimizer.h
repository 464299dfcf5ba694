// One optimizer update of a run of elements, with the arithmetic and order of operations of
// torch.optim, in float32, or in float64 where the parameters are that. One pass over memory, which
// can also write the copy that the unit computes with.
//
//   UpdateElements({.kind = OptimizerKind::kAdamW}, {.update = 1, .learning_rate = 1e-3},
//                  {.numel = n, .gradient = g, .parameter = p, .state = {m, v}});
//
// Deterministic: each element's result depends on its own inputs alone. Thread-safety: pure
// functions.
#ifndef TESSERA_WORKER_OPTIMIZER_H_
#define TESSERA_WORKER_OPTIMIZER_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/instruction_set.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

enum class OptimizerKind {
  kAdamW,  // weight decay acts on the parameter
  kAdam,   // weight decay is added to the gradient
  kSgd,    // momentum without dampening; weight decay is added to the gradient
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0;  // kSgd
};

// INVALID_ARGUMENT: the optimizer is unknown.
absl::StatusOr<OptimizerOptions> OptimizerOptionsOf(const v1::OptimizerSpec& spec);

struct UpdateStep {
  int64_t update = 1;  // from 1
  double learning_rate = 0;
  double gradient_scale = 1;  // of clipping
};

struct UpdateRun {
  int64_t numel = 0;
  bool decay = false;  // whether weight decay acts on these elements
  const void* gradient = nullptr;
  DType gradient_dtype = v1::FLOAT32;
  void* parameter = nullptr;
  DType parameter_dtype = v1::FLOAT32;  // the new values are rounded to it, once
  // kAdamW, kAdam: the two moments. kSgd: the momentum buffer where momentum is not 0. Of
  // OptimizerStateDType(parameter_dtype).
  std::array<void*, 2> state = {};
  // Where the new parameters also go, as copy_dtype; null: nowhere.
  void* copy = nullptr;
  DType copy_dtype = v1::DTYPE_UNSPECIFIED;
};

// The same bits in every instruction set.
void UpdateElements(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run,
                    InstructionSet set = WidestInstructionSet());

}  // namespace tessera

#endif  // TESSERA_WORKER_OPTIMIZER_H_
