#include "worker/workloads/schedule.h"

#include <algorithm>
#include <cmath>

namespace tessera {

double LearningRate(const v1::OptimizerSpec& optimizer, int64_t step, int64_t steps) {
  constexpr double kPi = 3.14159265358979323846;
  const int64_t warmup = optimizer.warmup_steps();
  double rate = optimizer.lr();
  if (step < warmup) rate *= static_cast<double>(step) / static_cast<double>(warmup);
  if (optimizer.schedule() == "constant" || steps <= warmup) return rate;
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  const double cosine = (1 + std::cos(kPi * std::clamp(progress, 0.0, 1.0))) / 2;
  const double final_fraction = optimizer.final_lr_fraction();
  return rate * (final_fraction + (1 - final_fraction) * cosine);
}

}  // namespace tessera
