// What a rank's program keeps from its forward to its backward: a forecast by the classes of the
// model's modules, for a pass of activations.batch sequences of activations.sequence tokens.
//
//   const Activations activations = ForecastActivations(model, plan, resolved, /*world_size=*/2);
//
// EXACT: the workload gpt, whose memory is counted as it allocates it (worker/workloads/
// gpt_model.h), with the float32 stand-ins for units in a 16-bit dtype; and the workload replay,
// which keeps none.
// ESTIMATED: what PyTorch's modules and Hugging Face's blocks save for their backward on a GPU, in
// the unit's param_dtype, from the shapes of their parameters: attention is fused (no scores are
// kept, but in T5), dropout is on with masks of a byte, and an output that is another module's
// input is counted once. Blocks are within 4% of what transformers 4.57 saves so
// (tests/measure/saved_activations.py).
// UNKNOWN: a class with parameters of its own, or around others, whose forward is not known, or a
// batch or sequence that is not given. One unknown class makes the whole unknown.
//
// recompute "unit": a unit directly below the root keeps its input, and is computed again in its
// backward, one at a time.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_ACTIVATIONS_H_
#define TESSERA_COORDINATOR_ACTIVATIONS_H_

#include <cstdint>
#include <vector>

#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Larger forecasts are cut off here, so that their sums do not overflow.
inline constexpr int64_t kMaxActivationBytes = int64_t{1} << 46;

struct Activations {
  v1::Forecast::Certainty certainty = v1::Forecast::UNKNOWN;
  std::vector<int64_t> kept;  // of each unit, from its forward to its backward
  int64_t constant = 0;       // there all the time
  int64_t recomputed = 0;     // while a unit is computed again
  // UNKNOWN: of the classes that are known.
  int64_t total = 0;
  std::vector<v1::ActivationForecast> classes;  // largest first
};

// `plan` is of `model`, which is valid. Where the job's batch does not divide by its ranks, those
// with the most count.
Activations ForecastActivations(const v1::ModelSpec& model, const v1::Plan& plan,
                                const v1::JobSpec& resolved, int world_size);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_ACTIVATIONS_H_
