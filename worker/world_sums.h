// Sums over all ranks of a job of any memory, through the gradient buffers that the layout planned.
// For what is no unit's gradient (parameters that are in no unit) or is not reduced as the executor
// would (communication hooks).
//
//   WorldSums sums(collectives, {.rank = 1, .world_size = 4}, unit, gradient_slot, slot_bytes);
//   TESSERA_RETURN_IF_ERROR(sums.AllReduce(tensor));
//
// Every call waits for every rank, and every rank makes the same calls. Sums run in rank order in
// float32 (float64 for float64) and are rounded once to the result's dtype.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_WORLD_SUMS_H_
#define TESSERA_WORKER_WORLD_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/collectives.h"
#include "worker/elements.h"

namespace tessera {

class WorldSums {
 public:
  struct World {
    int rank = 0;
    int world_size = 1;
  };

  // `gradient_slot` has `slot_bytes` bytes and no tenant while a call runs. `unit`: for errors.
  WorldSums(Collectives* collectives, World world, int unit, int gradient_slot, int64_t slot_bytes);

  // tensor[i] becomes the sum of all ranks' tensor[i], divided by `divisor`.
  absl::Status AllReduce(const FlatTensor& tensor, double divisor = 1);
  // `input` is world_size runs as long as `output`, which becomes the sum of all ranks' run of
  // number `rank`. INVALID_ARGUMENT: it is not.
  absl::Status ReduceScatter(const FlatTensor& input, const FlatTensor& output);

 private:
  // Elements of which `runs` runs fit into the slot at once; 0: none.
  int64_t Fit(int64_t runs, DType dtype) const;
  // For `runs` owners from number `first` on, whose runs of `input` are `stride` elements apart:
  // `output` of `owner` becomes the sum over all ranks of its run, divided by `divisor`.
  struct Runs {
    int first = 0;
    int runs = 1;
    int owner = 0;
    int64_t stride = 0;
  };
  absl::Status Sum(const FlatTensor& input, const Runs& runs, double divisor,
                   const FlatTensor& output);

  Collectives* const collectives_;
  const World world_;
  const int unit_;
  const int gradient_slot_;
  const int64_t slot_bytes_;
  std::vector<double> sum_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORLD_SUMS_H_
