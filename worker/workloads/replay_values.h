// The gradients of the workload replay: known for every element of every rank, so that what a
// reduction must give is worked out without it. Every gradient is `factor` x a small integer that
// depends on rank, parameter, element, step, micro-batch and use; `factor` is what the sum over
// ranks is divided by. So the average is the sum of the integers: exact in every dtype, whatever
// the order of the sum and wherever the division is made. Where the loss is scaled, gradients and
// averages are so many times that.
//
//   TESSERA_ASSIGN_OR_RETURN(const ReplayRule rule, MakeReplayRule(unit, job, world_size, uses));
//   WriteReplay(rule.Stream(pass, fqn), rule.factor, /*add=*/false, gradient_view);
//   ...
//   ExpectReplay(rule, step, unit.fqn(), unit.parameters(0), first, absl::MakeSpan(sums));
//
// Thread-safety: pure functions of values.
#ifndef TESSERA_WORKER_WORKLOADS_REPLAY_VALUES_H_
#define TESSERA_WORKER_WORKLOADS_REPLAY_VALUES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/tensor_view.h"

namespace tessera {

// One pass through a unit: what its gradients are a function of, beside the parameter's name.
struct ReplayPass {
  int64_t seed = 0;  // of the job
  int rank = 0;
  int64_t step = 1;
  int64_t micro_batch = 0;
  int64_t use = 0;  // of the unit in the micro-batch
};

// The integers of one parameter in one pass: uniform in [-largest, largest].
class ReplayStream {
 public:
  ReplayStream(uint64_t key, int64_t largest)
      : key_(static_cast<uint32_t>(key)), largest_(largest), range_(2 * largest + 1) {}

  int64_t At(int64_t element) const {
    const auto low = static_cast<uint32_t>(element);
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(element) >> 32);
    uint32_t hash = (low * 0x9e3779b9u + key_) ^ (high * 0x85ebca77u);
    hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
    hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    return static_cast<int64_t>((hash * static_cast<uint64_t>(range_)) >> 32) - largest_;
  }

 private:
  uint32_t key_;
  int64_t largest_;
  int64_t range_;
};

// How a unit's gradients are made.
struct ReplayRule {
  double factor = 1;
  int64_t largest = 1;  // of the integers

  // Whether the rank has a gradient of the parameter `fqn` (its own or a tied name) in this pass.
  // One unit in 16 has none at all, and of the others one parameter in 8: other ones on each rank.
  static bool Contributes(const ReplayPass& pass, absl::string_view unit, absl::string_view fqn);
  ReplayStream Stream(const ReplayPass& pass, absl::string_view fqn) const;
};

// The largest integers for which every sum that a step makes is exact in every dtype that the
// unit's gradients pass through: a gradient and what a rank adds to it over `uses` of the unit,
// micro-batches and tied names; and the average. INVALID_ARGUMENT (mixed_precision.divide_factor,
// mixed_precision.loss_scale or micro_batches): there are none but zero; says what to lower.
absl::StatusOr<ReplayRule> MakeReplayRule(const v1::Unit& unit, const v1::JobSpec& resolved,
                                          int world_size, int64_t uses);

// gradient[i] = factor x stream.At(i) for all of the view; `add`: plus what is there.
void WriteReplay(const ReplayStream& stream, double factor, bool add, const TensorView& gradient);

// A step of one parameter: what sums[i], element first + i of the averaged gradient, must be.
struct ReplayStep {
  int64_t seed = 0;
  int64_t step = 1;
  int world_size = 1;
  int64_t micro_batches = 1;
  int64_t uses = 1;
  double scale = 1;  // of the loss; in no sum of ExpectReplay
};
void ExpectReplay(const ReplayRule& rule, const ReplayStep& step, absl::string_view unit,
                  const v1::UnitParameter& parameter, int64_t first, absl::Span<int64_t> sums);

// Elements of a shard, exactly.
double ElementAt(const void* data, DType dtype, int64_t index);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_REPLAY_VALUES_H_
