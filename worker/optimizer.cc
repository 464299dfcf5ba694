#include "worker/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/float_bits.h"

namespace tessera {
namespace {

// What to do with a new parameter beside storing it.
struct NoCopy {
  void operator()(int64_t, float) const {}
};
struct CopyBFloat16 {
  uint16_t* to;
  void operator()(int64_t i, float value) const { to[i] = BFloat16FromFloat(value); }
};
struct CopyFloat16 {
  uint16_t* to;
  void operator()(int64_t i, float value) const { to[i] = Float16FromFloat(value); }
};

// Built with -fno-math-errno: the errno of sqrt would keep the loop from being vectorised.
template <typename Copy>
void Adam(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run,
          Copy copy) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step.update));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step.update));
  const bool decoupled = options.kind == OptimizerKind::kAdamW;
  const double decay = run.decay ? options.weight_decay : 0;
  const float keep = static_cast<float>(decoupled ? 1 - step.learning_rate * decay : 1);
  const float added = static_cast<float>(decoupled ? 0 : decay);
  const float scale = static_cast<float>(step.gradient_scale);
  const float weight1 = static_cast<float>(1 - options.beta1);
  const float beta2 = static_cast<float>(options.beta2);
  const float weight2 = static_cast<float>(1 - options.beta2);
  const float step_size = static_cast<float>(step.learning_rate / correction1);
  const float root_correction2 = static_cast<float>(std::sqrt(correction2));
  const float eps = static_cast<float>(options.eps);
  const float* __restrict gradient = run.gradient;
  float* __restrict parameter = run.parameter;
  float* __restrict exp_avg = run.state[0];
  float* __restrict exp_avg_sq = run.state[1];
  for (int64_t i = 0; i < run.numel; ++i) {
    const float g = gradient[i] * scale + parameter[i] * added;
    const float m = exp_avg[i] + (g - exp_avg[i]) * weight1;
    const float v = exp_avg_sq[i] * beta2 + weight2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    const float p = parameter[i] * keep - step_size * (m / (std::sqrt(v) / root_correction2 + eps));
    parameter[i] = p;
    copy(i, p);
  }
}

template <typename Copy>
void Sgd(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run, Copy copy) {
  const float added = static_cast<float>(run.decay ? options.weight_decay : 0);
  const float scale = static_cast<float>(step.gradient_scale);
  const float rate = static_cast<float>(step.learning_rate);
  const float momentum = static_cast<float>(options.momentum);
  const float* __restrict gradient = run.gradient;
  float* __restrict parameter = run.parameter;
  float* __restrict buffer = run.state[0];
  for (int64_t i = 0; i < run.numel; ++i) {
    float g = gradient[i] * scale + parameter[i] * added;
    if (buffer != nullptr) {
      g += momentum * buffer[i];  // zero before the first update
      buffer[i] = g;
    }
    const float p = parameter[i] - rate * g;
    parameter[i] = p;
    copy(i, p);
  }
}

template <typename Copy>
void Update(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run,
            Copy copy) {
  if (options.kind == OptimizerKind::kSgd) {
    Sgd(options, step, run, copy);
  } else {
    Adam(options, step, run, copy);
  }
}

}  // namespace

absl::StatusOr<OptimizerOptions> OptimizerOptionsOf(const v1::OptimizerSpec& spec) {
  OptimizerOptions options = {.kind = OptimizerKind::kAdamW,
                              .beta1 = spec.betas(0),
                              .beta2 = spec.betas(1),
                              .eps = spec.eps(),
                              .weight_decay = spec.weight_decay(),
                              .momentum = spec.momentum()};
  if (spec.name() == "adamw") return options;
  if (spec.name() == "adam") {
    options.kind = OptimizerKind::kAdam;
    return options;
  }
  if (spec.name() == "sgd") {
    options.kind = OptimizerKind::kSgd;
    return options;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown optimizer \"", spec.name(), "\""));
}

void UpdateElements(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run) {
  if (run.copy == nullptr) return Update(options, step, run, NoCopy());
  if (run.copy_dtype == v1::BFLOAT16) return Update(options, step, run, CopyBFloat16{run.copy});
  return Update(options, step, run, CopyFloat16{run.copy});
}

}  // namespace tessera
