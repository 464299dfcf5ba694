// Layout -> bytes: of each rank, of each host, and on the wire. What workers map is measured
// against it.
//
// Wire: in a step every unit is gathered for its forward and again for its backward, the root once
// (it stays whole between them), and its gradients are reduced once: FSDP's FULL_SHARD, (W-1)/W x
// (sp x (2N - N_root) + sr x N) with N padded, since padding travels too. Every micro-batch
// gathers; how many of them reduce is the caller's to say.
#ifndef TESSERA_COORDINATOR_FORECAST_H_
#define TESSERA_COORDINATOR_FORECAST_H_

#include <cstdint>

#include "tessera/v1/plan.pb.h"

namespace tessera {

// `layout` is of `plan`. Ranks are dealt out to hosts `local_world_size` (at least 1) at a time in
// rank order; the last host may have fewer.
v1::Forecast MakeForecast(const v1::Plan& plan, const v1::Layout& layout, int local_world_size,
                          int64_t micro_batches = 1, int64_t reductions = 1);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FORECAST_H_
