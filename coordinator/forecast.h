// Layout -> bytes: of each rank, of each host, by phase of a step, and on the wire. What workers
// map is measured against it; wire.h says what is sent, timeline.h what is live when.
//
//   const v1::Forecast forecast =
//       MakeForecast(plan, layout, ForecastOptionsOf(model, plan, resolved, world_size));
//
// In semantics.md's terms, with N padded, S ranks a shard group and so, sp, sr the bytes of an
// element: a rank holds so x N/S of parameters, as much of reduced gradients (in gradient_dtype)
// and 4 bytes x arrays x N/S of optimizer state; whole units, their gradients and the rest are the
// slots of the layout.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_FORECAST_H_
#define TESSERA_COORDINATOR_FORECAST_H_

#include <cstdint>

#include "coordinator/activations.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Parameters that belong to no unit are whole on every rank, and so are the gradients of those with
// requires_grad. Nothing here trains them.
struct UnmanagedBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;
};

// Of the plan's orphans and ignored parameters, each storage once; an FQN there may also be a
// module's. `plan` is of `model`.
UnmanagedBytes UnmanagedOf(const v1::Plan& plan, const v1::ModelSpec& model);

struct ForecastOptions {
  int64_t micro_batches = 1;
  int64_t reductions = 1;  // of them, how many reduce
  Activations activations;
  UnmanagedBytes unmanaged;
};

// Of a job at `world_size`: with memory.accumulate_unsynchronized only the last micro-batch
// reduces.
ForecastOptions ForecastOptionsOf(const v1::ModelSpec& model, const v1::Plan& plan,
                                  const v1::JobSpec& resolved, int world_size);

// `layout` is of `plan`. Every rank has shards of the same length. Whether it fits is not said
// (coordinator/fit.h).
v1::Forecast MakeForecast(const v1::Plan& plan, const v1::Layout& layout,
                          const ForecastOptions& options);

// What memory.device_memory is compared with: on CUDA what a rank allocates on its GPU, elsewhere
// what the busiest host maps for all its ranks; with activations, buffers and unmanaged parameters.
int64_t NeededBytes(const v1::Plan& plan, const v1::Layout& layout, const ForecastOptions& options);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FORECAST_H_
