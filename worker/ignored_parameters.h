// Parameters in no unit: those of wrap.ignore, and orphans of root_unit by_policy. The program owns
// their values, gradients and updates, whole on every rank; a session averages their gradients,
// counts them in the step's norm, and says by what the gradients were clipped.
//
//   TESSERA_RETURN_IF_ERROR(CheckEqualOnAllRanks(session, "the biases", values));  // at the start
//   ... each step, after the last Reduce:
//   TESSERA_RETURN_IF_ERROR(AllReduceGradients(session, gradients));
//   TESSERA_ASSIGN_OR_RETURN(const StepResult result, session.EndStep(metrics));
//   if (!result.non_finite) Update(values, gradients, result.clip_coefficient);
#ifndef TESSERA_WORKER_IGNORED_PARAMETERS_H_
#define TESSERA_WORKER_IGNORED_PARAMETERS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/elements.h"
#include "worker/session.h"

namespace tessera {

// gradients[i] becomes its average over all ranks, the same bits on each: summed in rank order in
// float32 (float64 for float64), divided once by the number of ranks (or
// mixed_precision.divide_factor), rounded once. Of any length; it goes through the planned gradient
// buffers in parts, and waits. Every rank calls it with as many elements of the same dtype. Inside
// a step the average counts in gradient_norm and non_finite, so call it once a step for a gradient:
// after the last micro-batch's last Reduce, with the sum over the micro-batches. Outside one it
// counts nowhere. FAILED_PRECONDITION: a unit has gradients that are not reduced (names it).
// INVALID_ARGUMENT: another length or dtype than another rank's, or no dtype of gradients.
// UNIMPLEMENTED: on GPUs.
absl::Status AllReduceGradients(Session& session, const FlatTensor& gradients);

// Whether `bytes` are the same on every rank: the program has to start its own parameters alike.
// Every rank calls it; waits. `what` is named in the error. FAILED_PRECONDITION: they differ; names
// a rank.
absl::Status CheckEqualOnAllRanks(Session& session, absl::string_view what,
                                  absl::string_view bytes);

}  // namespace tessera

#endif  // TESSERA_WORKER_IGNORED_PARAMETERS_H_
