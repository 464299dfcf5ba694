// A model without a task: gradients are a known function of the parameters, the rank and the step,
// so that what training must give can be worked out element by element in double precision.
//
// Units h.0, h.1, h.2 (class Block: w [7, 5], b [5], and c [3], which never gets a gradient) and
// the root (emb.weight [11, 5], used a second time as head.weight).
#ifndef TESSERA_TESTS_SESSION_TOY_MODEL_H_
#define TESSERA_TESTS_SESSION_TOY_MODEL_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "worker/session.h"

namespace tessera {

inline constexpr int kToyBlocks = 3;

// `unshard`: slots or resident.
v1::JobSpec ToyJob(const std::string& unshard);

// The gradient that `rank` computes for an element whose value is `parameter`.
float ToyGradient(float parameter, int rank, int64_t step, int64_t element);

// One step: forward through the blocks, backward, reductions, vote; all but the vote once for each
// micro-batch, of which the last alone synchronises. Wrong parameters (another tenant's, stale,
// torn) are an error.
absl::StatusOr<StepResult> ToyStep(Session& session, double learning_rate, int micro_batches = 1);
// The same once it is begun.
absl::StatusOr<StepResult> ToyRestOfStep(Session& session, const StepInfo& step,
                                         int micro_batches = 1);

// Every parameter by FQN, through Summon.
using ToyValues = std::map<std::string, std::vector<float>>;
absl::StatusOr<ToyValues> ToySummonAll(Session& session);

// What `steps` steps at `world_size` make of `start`, in double precision.
ToyValues ToyReference(const ToyValues& start, int world_size, int64_t steps, double learning_rate);

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_TOY_MODEL_H_
