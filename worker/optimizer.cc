#include "worker/optimizer.h"

#include <cmath>

namespace tessera {

// Built with -fno-math-errno: the errno of sqrt would keep the loop from being vectorised.
void AdamW(const AdamWOptions& options, int64_t step, double learning_rate, bool decay,
           int64_t numel, const float* gradient, float* parameter, float* exp_avg,
           float* exp_avg_sq) {
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(step));
  const float keep = decay ? static_cast<float>(1 - learning_rate * options.weight_decay) : 1.0f;
  const float weight1 = static_cast<float>(1 - options.beta1);
  const float beta2 = static_cast<float>(options.beta2);
  const float weight2 = static_cast<float>(1 - options.beta2);
  const float step_size = static_cast<float>(learning_rate / correction1);
  const float root_correction2 = static_cast<float>(std::sqrt(correction2));
  const float eps = static_cast<float>(options.eps);
  for (int64_t i = 0; i < numel; ++i) {
    const float g = gradient[i];
    const float m = exp_avg[i] + (g - exp_avg[i]) * weight1;
    const float v = exp_avg_sq[i] * beta2 + weight2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = parameter[i] * keep - step_size * (m / (std::sqrt(v) / root_correction2 + eps));
  }
}

}  // namespace tessera
