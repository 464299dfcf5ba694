// What the workload replay holds a session's memory against.
//
// Thread-safety: pure functions; ParameterBits: none.
#ifndef TESSERA_WORKER_WORKLOADS_REPLAY_CHECKS_H_
#define TESSERA_WORKER_WORKLOADS_REPLAY_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/dtype.h"
#include "tessera/v1/plan.pb.h"
#include "worker/tensor_view.h"
#include "worker/workloads/replay_values.h"

namespace tessera {

// One rank's reduced gradients of a unit.
struct ReplayShard {
  int rank = 0;  // for messages
  int shard_index = 0;
  const void* data = nullptr;  // shard_numel elements
  DType dtype = v1::FLOAT32;
};

// Every element, those of padding and of frozen parameters too, which must be zero. DATA_LOSS: one
// is not; names it.
absl::Status CheckGradientShard(const ReplayRule& rule, const ReplayStep& step,
                                const v1::Unit& unit, const v1::UnitLayout& layout,
                                const ReplayShard& shard);

// A parameter as the seed made it, in the dtypes that it went through. DATA_LOSS, as above.
absl::Status CheckFirstValues(int64_t seed, int rank, const v1::Unit& unit,
                              const v1::UnitParameter& parameter, const TensorView& view);

// A sum over the bits of what was unsharded, by which ranks can compare: as a double, exact, and
// exact when it is added up over up to 65,536 ranks.
class ParameterBits {
 public:
  void Add(const TensorView& view);
  double Take();

 private:
  uint64_t state_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_REPLAY_CHECKS_H_
