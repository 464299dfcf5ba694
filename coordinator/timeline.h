// How much is whole, and how much gradient there is, from unit to unit of a step.
//
//   for (const StepPoint& point : StepTimeline(plan, layout, activations)) ...
//
// Units go forward in the plan's order and backward in the opposite one. With a unit its enclosing
// units are whole, those that stay whole and have been forward, and the `prefetch` units that come
// next. In the backward the gradients of the unit and of those around it are there; while a unit is
// reduced the next one is at work already. This is FSDP's account (BACKWARD_PRE, and with prefetch
// 0 none) without what Tessera has not: no low-precision shard, no copy for padding, and the
// reduced shard goes straight to its place.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_TIMELINE_H_
#define TESSERA_COORDINATOR_TIMELINE_H_

#include <cstdint>
#include <vector>

#include "coordinator/activations.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct StepPoint {
  v1::PhaseForecast::Phase phase = v1::PhaseForecast::RESTING;
  int unit = -1;                // at work; -1 while resting
  int64_t unsharded_bytes = 0;  // of a shard group; the rest is one rank's
  int64_t gradient_bytes = 0;
  int64_t resharded_bytes = 0;
  int64_t staging_bytes = 0;
  int64_t activation_bytes = 0;
};

// A resting point, one a unit forward, then a backward and, where the unit is trained, a reduction
// of each. Of the last micro-batch: unsharded gradients that accumulate are all there.
std::vector<StepPoint> StepTimeline(const v1::Plan& plan, const v1::Layout& layout,
                                    const Activations& activations);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_TIMELINE_H_
