// Refuses meshes that can be planned and not yet run. For CheckRunnable; units'
// settings of their own are plan_runnable.h's.
#ifndef TESSERA_COORDINATOR_RUNNABLE_MESH_H_
#define TESSERA_COORDINATOR_RUNNABLE_MESH_H_

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// INVALID_ARGUMENT: Field(status) says which field, the message what there is.
absl::Status CheckMeshRunnable(const v1::JobSpec& resolved);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RUNNABLE_MESH_H_
