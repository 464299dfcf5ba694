// What of a rank's planned memory is in use while a step goes on. All of it is mapped before the
// first step and stays; here is what holds something at each point.
//
// A point is one unit's forward or backward, in the plan's order (post-order, and backwards): the
// unit and those around it are whole, and `prefetch` units ahead. The root stays whole from the
// first forward to the last backward, other units as their strategy says; with resident units, or
// no_shard, all are whole always. In a unit's backward its gradients and those of the units around
// it are unsharded, and the unit before it is being reduced; where gradients accumulate without
// synchronisation each stays.
//
//   const StepMemory memory = MakeStepMemory(plan, layout, forecast, /*max_points=*/400);
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_STEP_MEMORY_H_
#define TESSERA_CLIENT_STEP_MEMORY_H_

#include <cstdint>
#include <vector>

#include "tessera/v1/plan.pb.h"

namespace tessera {

struct StepMemory {
  enum class Phase { kForward, kBackward, kOptimizer };
  struct Point {
    Phase phase = Phase::kForward;
    int unit = -1;                // of Plan.units; -1 for the optimizer
    int64_t unsharded_bytes = 0;  // units that are whole; the ranks of a host may share them
    int64_t gradient_bytes = 0;   // gradients of the rank that are not reduced yet
    int64_t total() const { return unsharded_bytes + gradient_bytes; }
  };
  // In use all the time, of a rank alone.
  int64_t parameter_bytes = 0;
  int64_t reduced_gradient_bytes = 0;
  int64_t optimizer_bytes = 0;
  int64_t other_bytes = 0;  // undo, step record, padding
  // Of what the layout planned for units that are whole and for gradients of one rank.
  int64_t planned_unsharded_bytes = 0;
  int64_t planned_gradient_bytes = 0;
  std::vector<Point> points;

  int64_t fixed_bytes() const {
    return parameter_bytes + reduced_gradient_bytes + optimizer_bytes + other_bytes;
  }
  int64_t planned_bytes() const {
    return fixed_bytes() + planned_unsharded_bytes + planned_gradient_bytes;
  }
};

// `layout` and `forecast` are of `plan`; the rank is the one with the most bytes of its own. Units
// without elements have no points. Of many units at most `max_points` (at least 3) points are left,
// each the largest of the run that it stands for. Nothing in use is more than was planned.
StepMemory MakeStepMemory(const v1::Plan& plan, const v1::Layout& layout,
                          const v1::Forecast& forecast, int max_points);

}  // namespace tessera

#endif  // TESSERA_CLIENT_STEP_MEMORY_H_
