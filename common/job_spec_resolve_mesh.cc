// ResolveJobSpec for mesh, memory and activations.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/byte_count.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/job_spec_checks.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Tokens and sequences of a pass; keeps products of them with a model's extents within a double.
constexpr int64_t kMaxTokens = int64_t{1} << 31;

absl::Status CheckDeviceMemory(const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<int64_t> bytes = ParseByteCount(text);
  if (!bytes.ok()) return InvalidField("memory.device_memory", bytes.status().message());
  if (*bytes > 0) return absl::OkStatus();
  return InvalidField("memory.device_memory",
                      "is 0; give the memory of a device, as 80GiB, or \"\"");
}

}  // namespace

absl::Status ResolveMesh(v1::MeshSpec* mesh) {
  TESSERA_DEFAULT(mesh, strategy, "full_shard");
  TESSERA_DEFAULT(mesh, min_workers, 2);
  TESSERA_DEFAULT(mesh, max_workers, std::max<int64_t>(2, mesh->min_workers()));
  TESSERA_DEFAULT(mesh, replicas, 1);
  TESSERA_DEFAULT(mesh, local_world_size, 0);
  TESSERA_DEFAULT(mesh, reshard_group, 0);
  TESSERA_RETURN_IF_ERROR(CheckOneOf(
      "mesh.strategy", mesh->strategy(),
      {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("mesh.min_workers", mesh->min_workers(), 1, kMaxWorkers));
  TESSERA_RETURN_IF_ERROR(CheckRange("mesh.max_workers", mesh->max_workers(), 1, kMaxWorkers));
  if (mesh->max_workers() < mesh->min_workers()) {
    return InvalidField("mesh.max_workers",
                        absl::StrCat("is ", mesh->max_workers(), ", less than mesh.min_workers ",
                                     mesh->min_workers(), "; raise it or lower the other"));
  }
  TESSERA_RETURN_IF_ERROR(CheckRange("mesh.replicas", mesh->replicas(), 1, kMaxWorkers));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("mesh.local_world_size", mesh->local_world_size(), 0, kMaxWorkers));
  TESSERA_RETURN_IF_ERROR(CheckRange("mesh.reshard_group", mesh->reshard_group(), 0, kMaxWorkers));
  if (mesh->reshard_group() == 0 || mesh->strategy() == "full_shard" ||
      mesh->strategy() == "hybrid_shard") {
    return absl::OkStatus();
  }
  return InvalidField("mesh.reshard_group",
                      absl::StrCat("is for mesh.strategy full_shard or hybrid_shard, and the "
                                   "strategy is ",
                                   mesh->strategy(), "; drop one of them"));
}

absl::Status ResolveMemory(v1::MemorySpec* memory) {
  TESSERA_DEFAULT(memory, unshard, "auto");
  TESSERA_DEFAULT(memory, prefetch, 1);
  TESSERA_DEFAULT(memory, max_live_units, 0);
  TESSERA_DEFAULT(memory, accumulate_unsynchronized, false);
  TESSERA_DEFAULT(memory, device_memory, "");
  TESSERA_DEFAULT(memory, reshard_root, false);
  TESSERA_RETURN_IF_ERROR(
      CheckOneOf("memory.unshard", memory->unshard(), {"auto", "resident", "slots"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("memory.prefetch", memory->prefetch(), 0, 1'024));
  TESSERA_RETURN_IF_ERROR(CheckRange("memory.max_live_units", memory->max_live_units(), 0, 1'024));
  return CheckDeviceMemory(memory->device_memory());
}

absl::Status ResolveActivations(bool builtin, v1::ActivationSpec* activations) {
  if (!builtin && !activations->has_batch()) activations->set_batch(0);
  if (!builtin && !activations->has_sequence()) activations->set_sequence(0);
  TESSERA_DEFAULT(activations, recompute, "none");
  // 0 says "not known"; of the builtin model it is.
  const int64_t least = builtin ? 1 : 0;
  if (activations->has_batch()) {
    TESSERA_RETURN_IF_ERROR(
        CheckRange("activations.batch", activations->batch(), least, kMaxTokens));
  }
  if (activations->has_sequence()) {
    TESSERA_RETURN_IF_ERROR(
        CheckRange("activations.sequence", activations->sequence(), least, kMaxTokens));
  }
  return CheckOneOf("activations.recompute", activations->recompute(), {"none", "unit"});
}

}  // namespace tessera
