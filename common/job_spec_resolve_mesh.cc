#include "common/job_spec_resolve_mesh.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/byte_count.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Tokens and sequences of a pass; keeps products of them with a model's extents within a double.
constexpr int64_t kMaxTokens = int64_t{1} << 31;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", value, "; give ", low, " to ", high));
}

absl::Status CheckOneOf(absl::string_view field, const std::string& value,
                        std::initializer_list<absl::string_view> known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("\"", value, "\" is unknown; use ", absl::StrJoin(known, " or ")));
}

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
  if (!mesh->has_strategy()) mesh->set_strategy("full_shard");
  if (!mesh->has_min_workers()) mesh->set_min_workers(2);
  if (!mesh->has_max_workers()) mesh->set_max_workers(std::max<int64_t>(2, mesh->min_workers()));
  if (!mesh->has_replicas()) mesh->set_replicas(1);
  if (!mesh->has_local_world_size()) mesh->set_local_world_size(0);
  if (!mesh->has_reshard_group()) mesh->set_reshard_group(0);
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
  if (!memory->has_unshard()) memory->set_unshard("auto");
  if (!memory->has_prefetch()) memory->set_prefetch(1);
  if (!memory->has_max_live_units()) memory->set_max_live_units(0);
  if (!memory->has_accumulate_unsynchronized()) memory->set_accumulate_unsynchronized(false);
  if (!memory->has_device_memory()) memory->set_device_memory("");
  TESSERA_RETURN_IF_ERROR(
      CheckOneOf("memory.unshard", memory->unshard(), {"auto", "resident", "slots"}));
  TESSERA_RETURN_IF_ERROR(CheckRange("memory.prefetch", memory->prefetch(), 0, 1'024));
  TESSERA_RETURN_IF_ERROR(CheckRange("memory.max_live_units", memory->max_live_units(), 0, 1'024));
  return CheckDeviceMemory(memory->device_memory());
}

absl::Status ResolveActivations(bool builtin, v1::ActivationSpec* activations) {
  if (!builtin && !activations->has_batch()) activations->set_batch(0);
  if (!builtin && !activations->has_sequence()) activations->set_sequence(0);
  if (!activations->has_recompute()) activations->set_recompute("none");
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
