// The factor by which a program multiplies its loss, so that gradients of float16 do not vanish.
// Dynamic: the rule of torch.amp.GradScaler, in float32 as there.
//
//   LossScale scale(job.mixed_precision().loss_scale());
//   ... in a step: gradients of scale.factor() x the loss, divided by it before they are used
//   scale.Update(/*non_finite=*/false);
//
// All ranks see the same steps skipped, so they have the same factor. Thread-safety: none.
#ifndef TESSERA_WORKER_LOSS_SCALE_H_
#define TESSERA_WORKER_LOSS_SCALE_H_

#include <cstdint>
#include <string>

namespace tessera {

class LossScale {
 public:
  static constexpr float kFirst = 65536;
  static constexpr float kGrowth = 2;     // after kGrowthInterval good steps
  static constexpr float kBackoff = 0.5;  // after one that was skipped
  static constexpr int64_t kGrowthInterval = 2000;

  // mixed_precision.loss_scale of a resolved job: none, dynamic or a number.
  explicit LossScale(const std::string& setting);

  double factor() const { return factor_; }
  // Good steps since the factor last changed.
  int64_t age() const { return age_; }

  // After a step. `non_finite`: it was skipped for an infinity or NaN.
  void Update(bool non_finite);
  // Goes on from where another process was.
  void Restore(double factor, int64_t age);

 private:
  const bool dynamic_;
  float factor_ = 1;
  int64_t age_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_LOSS_SCALE_H_
