#include "coordinator/runnable_mesh.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {

absl::Status CheckMeshRunnable(const v1::JobSpec& resolved) {
  const v1::MeshSpec& mesh = resolved.mesh();
  if (mesh.strategy() != "full_shard") {
    return InvalidField("mesh.strategy", absl::StrCat("\"", mesh.strategy(),
                                                      "\" can be planned, but not run yet; use "
                                                      "full_shard"));
  }
  if (mesh.replicas() != 1) {
    return InvalidField("mesh.replicas", "replicas can be planned, but not run yet; give 1");
  }
  if (mesh.local_world_size() != 0) {
    return InvalidField("mesh.local_world_size",
                        "several hosts can be planned, but not run yet; give 0");
  }
  if (mesh.reshard_group() != 0) {
    return InvalidField("mesh.reshard_group",
                        "reshard groups can be planned, but not run yet; give 0");
  }
  return absl::OkStatus();
}

}  // namespace tessera
