#include "worker/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/float_bits.h"

namespace tessera {
namespace {

// What to do with a new parameter beside storing it.
struct NoCopy {
  TESSERA_WIDE_LOOP void operator()(int64_t, float) const {}
};
struct CopyBFloat16 {
  uint16_t* __restrict to;
  TESSERA_WIDE_LOOP void operator()(int64_t i, float value) const {
    to[i] = BFloat16FromFloat(value);
  }
};
struct CopyFloat16 {
  uint16_t* __restrict to;
  TESSERA_WIDE_LOOP void operator()(int64_t i, float value) const {
    to[i] = Float16FromFloat(value);
  }
};

// What the elements of a run have in common.
struct AdamFactors {
  float keep = 1, added = 0, scale = 1;
  float weight1 = 0, beta2 = 0, weight2 = 0;
  float step_size = 0, root_correction2 = 1, eps = 0;
};

// Built with -fno-math-errno: the errno of sqrt would keep the loop from being vectorised.
template <typename Copy>
struct AdamLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict gradient, int64_t numel, AdamFactors f,
                                    float* __restrict parameter, float* __restrict exp_avg,
                                    float* __restrict exp_avg_sq, Copy copy) const {
    for (int64_t i = 0; i < numel; ++i) {
      const float g = gradient[i] * f.scale + parameter[i] * f.added;
      const float m = exp_avg[i] + (g - exp_avg[i]) * f.weight1;
      const float v = exp_avg_sq[i] * f.beta2 + f.weight2 * g * g;
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      const float root = std::sqrt(v) / f.root_correction2;
      const float p = parameter[i] * f.keep - f.step_size * (m / (root + f.eps));
      parameter[i] = p;
      copy(i, p);
    }
  }
};

struct SgdFactors {
  float added = 0, scale = 1, rate = 0, momentum = 0;
};

template <typename Copy, bool kMomentum>
struct SgdLoop {
  TESSERA_WIDE_LOOP void operator()(const float* __restrict gradient, int64_t numel, SgdFactors f,
                                    float* __restrict parameter, float* __restrict buffer,
                                    Copy copy) const {
    for (int64_t i = 0; i < numel; ++i) {
      float g = gradient[i] * f.scale + parameter[i] * f.added;
      if (kMomentum) {
        g += f.momentum * buffer[i];  // zero before the first update
        buffer[i] = g;
      }
      const float p = parameter[i] - f.rate * g;
      parameter[i] = p;
      copy(i, p);
    }
  }
};

template <typename Copy>
void Adam(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run, Copy copy,
          InstructionSet set) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step.update));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step.update));
  const bool decoupled = options.kind == OptimizerKind::kAdamW;
  const double decay = run.decay ? options.weight_decay : 0;
  const AdamFactors factors = {
      .keep = static_cast<float>(decoupled ? 1 - step.learning_rate * decay : 1),
      .added = static_cast<float>(decoupled ? 0 : decay),
      .scale = static_cast<float>(step.gradient_scale),
      .weight1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .weight2 = static_cast<float>(1 - options.beta2),
      .step_size = static_cast<float>(step.learning_rate / correction1),
      .root_correction2 = static_cast<float>(std::sqrt(correction2)),
      .eps = static_cast<float>(options.eps)};
  RunIn(set, AdamLoop<Copy>(), run.gradient, run.numel, factors, run.parameter, run.state[0],
        run.state[1], copy);
}

template <typename Copy>
void Sgd(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run, Copy copy,
         InstructionSet set) {
  const SgdFactors factors = {.added = static_cast<float>(run.decay ? options.weight_decay : 0),
                              .scale = static_cast<float>(step.gradient_scale),
                              .rate = static_cast<float>(step.learning_rate),
                              .momentum = static_cast<float>(options.momentum)};
  if (run.state[0] != nullptr) {
    RunIn(set, SgdLoop<Copy, true>(), run.gradient, run.numel, factors, run.parameter, run.state[0],
          copy);
  } else {
    RunIn(set, SgdLoop<Copy, false>(), run.gradient, run.numel, factors, run.parameter,
          run.state[0], copy);
  }
}

template <typename Copy>
void Update(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run,
            Copy copy, InstructionSet set) {
  if (options.kind == OptimizerKind::kSgd) {
    Sgd(options, step, run, copy, set);
  } else {
    Adam(options, step, run, copy, set);
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

void UpdateElements(const OptimizerOptions& options, const UpdateStep& step, const UpdateRun& run,
                    InstructionSet set) {
  if (run.copy == nullptr) return Update(options, step, run, NoCopy(), set);
  if (run.copy_dtype == v1::BFLOAT16)
    return Update(options, step, run, CopyBFloat16{run.copy}, set);
  return Update(options, step, run, CopyFloat16{run.copy}, set);
}

}  // namespace tessera
