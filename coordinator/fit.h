// Does a job fit in memory.device_memory, and if not, what would make it fit.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::Fit fit, MakeFit(input));
//
// On CUDA the memory is a GPU's, and a rank's whole units, their gradients, staging, activations
// and buffers have to fit; shards are in the host's memory. Elsewhere it is a host's, and all that
// the host's ranks map has to fit: mesh.local_world_size says how many they are. What CUDA, NCCL,
// the program's code and the system take is not counted, and neither are activations that are not
// known.
//
// A remedy is found by planning again with a field changed, so its figure is a forecast like any
// other.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_FIT_H_
#define TESSERA_COORDINATOR_FIT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct FitInput {
  const v1::ModelSpec& model;
  const v1::JobSpec& resolved;  // memory.device_memory is given
  const v1::Plan& plan;
  const v1::Layout& layout;
};

// INVALID_ARGUMENT: memory.device_memory is no number of bytes.
absl::StatusOr<v1::Fit> MakeFit(const FitInput& input);

// What the forecast of a plan at `layout` needs beside plan and layout.
struct ForecastOptions ForecastOptionsOf(const v1::ModelSpec& model, const v1::Plan& plan,
                                         const v1::JobSpec& resolved, int world_size);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FIT_H_
