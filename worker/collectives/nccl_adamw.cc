#include "worker/collectives/nccl_adamw.h"

#include <cmath>

namespace tessera {

AdamWRun AdamWRunOf(const OptimizerOptions& options, const UpdateStep& step,
                    const UpdateRun& arrays) {
  // In float64 and rounded once, as worker/optimizer.cc does; its results are the test's reference.
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step.update));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step.update));
  const bool decoupled = options.kind == OptimizerKind::kAdamW;
  const double decay = arrays.decay ? options.weight_decay : 0;
  return {.numel = arrays.numel,
          .gradient = static_cast<const float*>(arrays.gradient),
          .parameter = static_cast<float*>(arrays.parameter),
          .exp_avg = static_cast<float*>(arrays.state[0]),
          .exp_avg_sq = static_cast<float*>(arrays.state[1]),
          .copy = static_cast<uint16_t*>(arrays.copy),
          .copy_dtype =
              arrays.copy_dtype == v1::FLOAT16 ? KernelDType::kFloat16 : KernelDType::kBFloat16,
          .gradient_scale = static_cast<float>(step.gradient_scale),
          .keep = static_cast<float>(decoupled ? 1 - step.learning_rate * decay : 1),
          .added = static_cast<float>(decoupled ? 0 : decay),
          .weight1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .weight2 = static_cast<float>(1 - options.beta2),
          .step_size = static_cast<float>(step.learning_rate / correction1),
          .root_correction2 = static_cast<float>(std::sqrt(correction2)),
          .eps = static_cast<float>(options.eps)};
}

}  // namespace tessera
