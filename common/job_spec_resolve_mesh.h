// ResolveJobSpec's part for the mesh, the memory and the activations of a job: defaults and checks.
// What a world size makes of a mesh is checked when it is known (coordinator/mesh.h).
#ifndef TESSERA_COMMON_JOB_SPEC_RESOLVE_MESH_H_
#define TESSERA_COMMON_JOB_SPEC_RESOLVE_MESH_H_

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// INVALID_ARGUMENT: as ResolveJobSpec, with the field.
absl::Status ResolveMesh(v1::MeshSpec* mesh);
absl::Status ResolveMemory(v1::MemorySpec* memory);
// For the builtin gpt batch and sequence stay absent: they follow from the job and its world size.
absl::Status ResolveActivations(bool builtin, v1::ActivationSpec* activations);

}  // namespace tessera

#endif  // TESSERA_COMMON_JOB_SPEC_RESOLVE_MESH_H_
