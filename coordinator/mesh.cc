#include "coordinator/mesh.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr std::pair<absl::string_view, v1::ShardingStrategy> kStrategies[] = {
    {"full_shard", v1::FULL_SHARD},
    {"shard_grad_op", v1::SHARD_GRAD_OP},
    {"no_shard", v1::NO_SHARD},
    {"hybrid_shard", v1::HYBRID_SHARD},
    {"hybrid_shard_zero2", v1::HYBRID_SHARD_ZERO2},
};

absl::Status DoesNotDivide(absl::string_view field, int64_t value, absl::string_view what,
                           int64_t number) {
  return InvalidField(field, absl::StrCat("is ", value, ", which does not divide the ", number, " ",
                                          what, "; change one of them"));
}

// A host's ranks are cut into whole shard groups.
absl::Status CheckHybrid(const v1::MeshSpec& spec, const Mesh& mesh) {
  if (mesh.world_size % mesh.local_world_size != 0) {
    return DoesNotDivide("mesh.local_world_size", spec.local_world_size(), "ranks",
                         mesh.world_size);
  }
  if (mesh.local_world_size % mesh.shard_count == 0) return absl::OkStatus();
  return InvalidField(
      "mesh.replicas",
      absl::StrCat("is ", spec.replicas(), ", which makes shard groups of ", mesh.shard_count,
                   " ranks; mesh.strategy ", spec.strategy(), " cuts the ", mesh.local_world_size,
                   " ranks of a host into whole groups, give ",
                   mesh.world_size / mesh.local_world_size, " or a multiple that does"));
}

absl::Status SetGroups(const v1::MeshSpec& spec, Mesh* mesh) {
  const int world_size = mesh->world_size;
  const int64_t replicas = spec.replicas();
  if (mesh->strategy == v1::NO_SHARD) {
    if (replicas != 1 && replicas != world_size) {
      return InvalidField("mesh.replicas",
                          absl::StrCat("is ", replicas, ", but with mesh.strategy no_shard each of",
                                       " the ", world_size, " ranks is a replica; drop it"));
    }
    mesh->replica_count = world_size;
  } else if (IsHybrid(mesh->strategy) && replicas == 1) {
    mesh->replica_count = mesh->Hosts();
  } else {
    mesh->replica_count = static_cast<int>(replicas);
  }
  if (world_size % mesh->replica_count != 0) {
    if (replicas == 1) {  // of hosts that are not equal
      return DoesNotDivide("mesh.local_world_size", mesh->local_world_size, "ranks", world_size);
    }
    return DoesNotDivide("mesh.replicas", replicas, "ranks", world_size);
  }
  mesh->shard_count = world_size / mesh->replica_count;
  return IsHybrid(mesh->strategy) ? CheckHybrid(spec, *mesh) : absl::OkStatus();
}

}  // namespace

int Mesh::RanksOf(int host) const {
  return std::min(local_world_size, world_size - host * local_world_size);
}

int Mesh::ShardGroupsOf(int host) const {
  const int first = host * local_world_size;
  return ReplicaIndex(first + RanksOf(host) - 1) - ReplicaIndex(first) + 1;
}

bool Mesh::GroupsShareMemory() const {
  for (int first = 0; first < world_size; first += shard_count) {
    if (HostOf(first) != HostOf(first + shard_count - 1)) return false;
  }
  return true;
}

std::vector<int> Mesh::ShardGroup(int rank) const {
  std::vector<int> ranks(shard_count);
  std::iota(ranks.begin(), ranks.end(), ReplicaIndex(rank) * shard_count);
  return ranks;
}

std::vector<int> Mesh::ReplicaGroup(int rank) const {
  std::vector<int> ranks;
  for (int peer = ShardIndex(rank); peer < world_size; peer += shard_count) ranks.push_back(peer);
  return ranks;
}

v1::ShardingStrategy StrategyOf(absl::string_view name) {
  for (const auto& [known, strategy] : kStrategies) {
    if (known == name) return strategy;
  }
  return v1::SHARDING_STRATEGY_UNSPECIFIED;
}

std::string StrategyName(v1::ShardingStrategy strategy) {
  for (const auto& [name, known] : kStrategies) {
    if (known == strategy) return std::string(name);
  }
  return "unspecified";
}

bool KeepsUnitsWhole(v1::ShardingStrategy strategy) {
  return strategy == v1::SHARD_GRAD_OP || strategy == v1::HYBRID_SHARD_ZERO2;
}

bool IsHybrid(v1::ShardingStrategy strategy) {
  return strategy == v1::HYBRID_SHARD || strategy == v1::HYBRID_SHARD_ZERO2;
}

absl::Status CheckReshardGroup(absl::string_view field, int64_t reshard_group,
                               v1::ShardingStrategy strategy, int shard_count) {
  if (reshard_group == 0) return absl::OkStatus();
  if (strategy != v1::FULL_SHARD && strategy != v1::HYBRID_SHARD) {
    return InvalidField(field, absl::StrCat("is ", reshard_group, ", but units of the strategy ",
                                            StrategyName(strategy),
                                            " are not sharded again after the forward; give 0"));
  }
  if (reshard_group > 0 && shard_count % reshard_group == 0) return absl::OkStatus();
  return DoesNotDivide(field, reshard_group, "ranks of a shard group", shard_count);
}

absl::StatusOr<Mesh> MakeMesh(const v1::MeshSpec& spec, int world_size) {
  if (world_size < 1 || world_size > kMaxWorkers) {
    return InvalidField("world_size", absl::StrCat("is ", world_size, "; give 1 to ", kMaxWorkers));
  }
  Mesh mesh;
  mesh.strategy = StrategyOf(spec.strategy());
  if (mesh.strategy == v1::SHARDING_STRATEGY_UNSPECIFIED) {
    return InvalidField("mesh.strategy", absl::StrCat("\"", spec.strategy(), "\" is unknown"));
  }
  mesh.world_size = world_size;
  // More than there are ranks: all on one host.
  const int64_t local = spec.local_world_size();
  mesh.local_world_size =
      static_cast<int>(local <= 0 ? world_size : std::min<int64_t>(local, world_size));
  TESSERA_RETURN_IF_ERROR(SetGroups(spec, &mesh));
  TESSERA_RETURN_IF_ERROR(CheckReshardGroup("mesh.reshard_group", spec.reshard_group(),
                                            mesh.strategy, mesh.shard_count));
  mesh.reshard_group = static_cast<int>(spec.reshard_group());
  return mesh;
}

Mesh MeshOf(const v1::Layout& layout) {
  Mesh mesh;
  mesh.strategy = layout.sharding_strategy();
  mesh.world_size = layout.world_size();
  mesh.shard_count = layout.shard_count();
  mesh.replica_count = layout.replica_count();
  mesh.local_world_size = layout.local_world_size() == 0
                              ? layout.world_size()
                              : std::min(layout.local_world_size(), layout.world_size());
  mesh.reshard_group = layout.reshard_group();
  return mesh;
}

}  // namespace tessera
