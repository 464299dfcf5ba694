// Refuses meshes and activations that can be planned and not yet run. For CheckRunnable.
#ifndef TESSERA_COORDINATOR_RUNNABLE_MESH_H_
#define TESSERA_COORDINATOR_RUNNABLE_MESH_H_

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// INVALID_ARGUMENT: Field(status) says which field, the message what there is.
absl::Status CheckMeshRunnable(const v1::JobSpec& resolved, const v1::Plan& plan);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RUNNABLE_MESH_H_
