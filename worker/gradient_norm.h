// Norms of everything that the ranks hold together, as FSDP's clip_grad_norm_ finds them.
//
//   TESSERA_ASSIGN_OR_RETURN(const double largest,
//                            GradientNorm(session, std::numeric_limits<double>::infinity()));
//
// Every rank calls it, outside a step, and gets the same bits: each adds up its own shards in
// double, the sums go over the ranks in order, and what several ranks have (replicas, parameters in
// no unit) is counted by one of them. EndStep finds the norm that clips by itself
// (optimizer.clip_norm_type).
#ifndef TESSERA_WORKER_GRADIENT_NORM_H_
#define TESSERA_WORKER_GRADIENT_NORM_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/elements.h"
#include "worker/session.h"

namespace tessera {

// Of the averaged gradients of the last step, without the loss scale and as they were before the
// optimizer clipped them; of parameters that are not frozen. `p`: 1 or more; infinity: the largest
// magnitude. `unmanaged`: averages of parameters in no unit, the same on every rank, with the loss
// scale. INVALID_ARGUMENT: `p` is less than 1, or another rank's is another. FAILED_PRECONDITION:
// inside a step, or before the first.
absl::StatusOr<double> GradientNorm(Session& session, double p = 2,
                                    absl::Span<const FlatTensor> unmanaged = {});

// Of all parameters, frozen ones too, in their original dtype.
absl::StatusOr<double> ParameterNorm(Session& session, double p = 2,
                                     absl::Span<const FlatTensor> unmanaged = {});

}  // namespace tessera

#endif  // TESSERA_WORKER_GRADIENT_NORM_H_
