#include "worker/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/float_bits.h"
#include "common/optimizer_state.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

// Of what has to be cast to be updated: fits the first-level cache with the state beside it.
constexpr int64_t kBlock = 1024;

// What to do with a new parameter beside storing it.
struct NoCopy {
  template <typename T>
  TESSERA_WIDE_LOOP void operator()(int64_t, T) const {}
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

// A run all of whose arrays are of the dtype that its arithmetic is in.
template <typename T>
struct NativeRun {
  const T* gradient;
  int64_t numel;
  T* parameter;
  std::array<T*, 2> state;
};

// What the elements of a run have in common.
template <typename T>
struct AdamFactors {
  T keep = 1, added = 0, scale = 1;
  T weight1 = 0, beta2 = 0, weight2 = 0;
  T step_size = 0, root_correction2 = 1, eps = 0;
};

// Built with -fno-math-errno: the errno of sqrt would keep the loop from being vectorised.
template <typename T, typename Copy>
struct AdamLoop {
  TESSERA_WIDE_LOOP void operator()(const T* __restrict gradient, int64_t numel, AdamFactors<T> f,
                                    T* __restrict parameter, T* __restrict exp_avg,
                                    T* __restrict exp_avg_sq, Copy copy) const {
    for (int64_t i = 0; i < numel; ++i) {
      const T g = gradient[i] * f.scale + parameter[i] * f.added;
      const T m = exp_avg[i] + (g - exp_avg[i]) * f.weight1;
      const T v = exp_avg_sq[i] * f.beta2 + f.weight2 * g * g;
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      const T root = std::sqrt(v) / f.root_correction2;
      const T p = parameter[i] * f.keep - f.step_size * (m / (root + f.eps));
      parameter[i] = p;
      copy(i, p);
    }
  }
};

template <typename T>
struct SgdFactors {
  T added = 0, scale = 1, rate = 0, momentum = 0;
};

template <typename T, typename Copy, bool kMomentum>
struct SgdLoop {
  TESSERA_WIDE_LOOP void operator()(const T* __restrict gradient, int64_t numel, SgdFactors<T> f,
                                    T* __restrict parameter, T* __restrict buffer,
                                    Copy copy) const {
    for (int64_t i = 0; i < numel; ++i) {
      T g = gradient[i] * f.scale + parameter[i] * f.added;
      if (kMomentum) {
        g += f.momentum * buffer[i];  // zero before the first update
        buffer[i] = g;
      }
      const T p = parameter[i] - f.rate * g;
      parameter[i] = p;
      copy(i, p);
    }
  }
};

// The updates of one step of the elements that decay alike.
template <typename T>
class Updater {
 public:
  Updater(const OptimizerOptions& options, const UpdateStep& step, bool decays, InstructionSet set)
      : kind_(options.kind), set_(set) {
    const double decay = decays ? options.weight_decay : 0;
    if (kind_ == OptimizerKind::kSgd) {
      sgd_ = {.added = static_cast<T>(decay),
              .scale = static_cast<T>(step.gradient_scale),
              .rate = static_cast<T>(step.learning_rate),
              .momentum = static_cast<T>(options.momentum)};
      return;
    }
    const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step.update));
    const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step.update));
    const bool decoupled = kind_ == OptimizerKind::kAdamW;
    adam_ = {.keep = static_cast<T>(decoupled ? 1 - step.learning_rate * decay : 1),
             .added = static_cast<T>(decoupled ? 0 : decay),
             .scale = static_cast<T>(step.gradient_scale),
             .weight1 = static_cast<T>(1 - options.beta1),
             .beta2 = static_cast<T>(options.beta2),
             .weight2 = static_cast<T>(1 - options.beta2),
             .step_size = static_cast<T>(step.learning_rate / correction1),
             .root_correction2 = static_cast<T>(std::sqrt(correction2)),
             .eps = static_cast<T>(options.eps)};
  }

  template <typename Copy>
  void Run(const NativeRun<T>& run, Copy copy) const {
    if (kind_ != OptimizerKind::kSgd) {
      RunIn(set_, AdamLoop<T, Copy>(), run.gradient, run.numel, adam_, run.parameter, run.state[0],
            run.state[1], copy);
    } else if (run.state[0] != nullptr) {
      RunIn(set_, SgdLoop<T, Copy, true>(), run.gradient, run.numel, sgd_, run.parameter,
            run.state[0], copy);
    } else {
      RunIn(set_, SgdLoop<T, Copy, false>(), run.gradient, run.numel, sgd_, run.parameter,
            run.state[0], copy);
    }
  }

 private:
  const OptimizerKind kind_;
  const InstructionSet set_;
  AdamFactors<T> adam_;
  SgdFactors<T> sgd_;
};

// Everything in float32 but the copy: in one pass.
void UpdateFloat32(const Updater<float>& updater, const UpdateRun& run) {
  const NativeRun<float> native = {
      .gradient = static_cast<const float*>(run.gradient),
      .numel = run.numel,
      .parameter = static_cast<float*>(run.parameter),
      .state = {static_cast<float*>(run.state[0]), static_cast<float*>(run.state[1])}};
  if (run.copy == nullptr) return updater.Run(native, NoCopy());
  auto* copy = static_cast<uint16_t*>(run.copy);
  if (run.copy_dtype == v1::BFLOAT16) return updater.Run(native, CopyBFloat16{copy});
  updater.Run(native, CopyFloat16{copy});
}

// Any dtypes, by blocks that are cast to T and back.
template <typename T>
void UpdateBlocks(const Updater<T>& updater, const UpdateRun& run, InstructionSet set) {
  constexpr DType kDType = sizeof(T) == sizeof(double) ? v1::FLOAT64 : v1::FLOAT32;
  alignas(64) T gradient[kBlock];
  alignas(64) T parameter[kBlock];
  const bool in_place = run.parameter_dtype == kDType;
  for (int64_t begin = 0; begin < run.numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, run.numel - begin);
    CastElements(static_cast<const char*>(run.gradient) + begin * DTypeBytes(run.gradient_dtype),
                 run.gradient_dtype, count, kDType, gradient, set);
    char* master = static_cast<char*>(run.parameter) + begin * DTypeBytes(run.parameter_dtype);
    if (!in_place) CastElements(master, run.parameter_dtype, count, kDType, parameter, set);
    NativeRun<T> native = {.gradient = gradient,
                           .numel = count,
                           .parameter = in_place ? reinterpret_cast<T*>(master) : parameter,
                           .state = {}};
    for (size_t array = 0; array < native.state.size(); ++array) {
      if (run.state[array] != nullptr)
        native.state[array] = static_cast<T*>(run.state[array]) + begin;
    }
    updater.Run(native, NoCopy());
    if (!in_place) CastElements(parameter, kDType, count, run.parameter_dtype, master, set);
    if (run.copy == nullptr) continue;
    CastElements(master, run.parameter_dtype, count, run.copy_dtype,
                 static_cast<char*>(run.copy) + begin * DTypeBytes(run.copy_dtype), set);
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
  if (OptimizerStateDType(run.parameter_dtype) == v1::FLOAT64) {
    return UpdateBlocks(Updater<double>(options, step, run.decay, set), run, set);
  }
  const Updater<float> updater(options, step, run.decay, set);
  const bool narrow_copy =
      run.copy == nullptr || run.copy_dtype == v1::BFLOAT16 || run.copy_dtype == v1::FLOAT16;
  if (run.parameter_dtype == v1::FLOAT32 && run.gradient_dtype == v1::FLOAT32 && narrow_copy) {
    return UpdateFloat32(updater, run);
  }
  UpdateBlocks(updater, run, set);
}

}  // namespace tessera
