// Does a job fit in memory.device_memory, and if not, what would make it fit.
//
//   TESSERA_ASSIGN_OR_RETURN(const FittedLayout fitted, LayOutToFit(model, plan, resolved, 8));
//   const v1::Fit fit = MakeFit(model, plan, resolved, fitted);
//
// On CUDA the memory is a GPU's, and a rank's whole units, their gradients, staging, activations
// and buffers have to fit; shards are in the host's memory. Elsewhere it is a host's, and all that
// the host's ranks map has to fit: mesh.local_world_size says how many they are. What CUDA, NCCL,
// the program's code and the system take is not counted, and neither are activations that are not
// known.
//
// A remedy is found by planning again with a field changed, so its figure is a forecast like any
// other. Remedies that help are listed also where they do not suffice; if none does, what all of
// them give together comes last.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_FIT_H_
#define TESSERA_COORDINATOR_FIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/forecast.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct FittedLayout {
  v1::Layout layout;
  ForecastOptions options;
  int64_t needed_bytes = 0;
  // What resident would have needed, where memory.unshard auto took slots for want of memory.
  int64_t resident_needed_bytes = 0;
};

// As MakeLayout, but where memory.unshard is auto and memory.device_memory is given, resident units
// are taken only if they fit, or slots need no less. INVALID_ARGUMENT: as MakeLayout.
absl::StatusOr<FittedLayout> LayOutToFit(const v1::ModelSpec& model, const v1::Plan& plan,
                                         const v1::JobSpec& resolved, int world_size);

// `resolved` has a memory.device_memory, and `plan` and `fitted` are of it at `world_size`.
v1::Fit MakeFit(const v1::ModelSpec& model, const v1::Plan& plan, const v1::JobSpec& resolved,
                const FittedLayout& fitted);

// What forecast.fit says, a sentence each: the verdict, what is not counted, the remedies.
std::vector<std::string> FitNotes(const v1::Forecast& forecast);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FIT_H_
