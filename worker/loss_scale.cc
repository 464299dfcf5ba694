#include "worker/loss_scale.h"

#include <cmath>

#include "absl/strings/numbers.h"

namespace tessera {

LossScale::LossScale(const std::string& setting) : dynamic_(setting == "dynamic") {
  if (dynamic_) {
    factor_ = kFirst;
  } else if (float factor = 0; absl::SimpleAtof(setting, &factor)) {
    factor_ = factor;
  }
}

void LossScale::Update(bool non_finite) {
  if (!dynamic_) return;
  if (non_finite) {
    factor_ *= kBackoff;
    age_ = 0;
    return;
  }
  if (++age_ < kGrowthInterval) return;
  if (std::isfinite(factor_ * kGrowth)) factor_ *= kGrowth;
  age_ = 0;
}

void LossScale::Restore(double factor, int64_t age) {
  if (!dynamic_) return;
  factor_ = static_cast<float>(factor);
  age_ = age;
}

}  // namespace tessera
