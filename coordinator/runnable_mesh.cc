#include "coordinator/runnable_mesh.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {
namespace {

// GPUs have one communicator for each shard group and none between replicas.
absl::Status CheckGpuMesh(const v1::MeshSpec& mesh) {
  const std::string& strategy = mesh.strategy();
  if (strategy != "full_shard" && strategy != "shard_grad_op") {
    return InvalidField(
        "mesh.strategy",
        absl::StrCat("\"", strategy, "\" does not run on GPUs yet; use full_shard, ",
                     "shard_grad_op or the device cpu"));
  }
  if (mesh.replicas() != 1) {
    return InvalidField("mesh.replicas", "do not run on GPUs yet; give 1 or the device cpu");
  }
  if (mesh.reshard_group() != 0) {
    return InvalidField("mesh.reshard_group", "does not run on GPUs yet; give 0 or the device cpu");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMeshRunnable(const v1::JobSpec& resolved) {
  return resolved.device() == "cuda" ? CheckGpuMesh(resolved.mesh()) : absl::OkStatus();
}

}  // namespace tessera
