// Which rank holds what: shard groups, replica groups and hosts of a job's mesh.
//
//   TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, MakeMesh(resolved.mesh(), /*world_size=*/16));
//   mesh.ShardIndex(rank), mesh.ReplicaIndex(rank), mesh.HostOf(rank)
//
// A shard group is a run of shard_count consecutive ranks, and a replica group the ranks of equal
// shard index, one of each shard group: FSDP's groups. Hosts are runs of local_world_size ranks.
//
//   strategy                          shard_count                       within a host
//   full_shard, shard_grad_op         world_size / replicas             not needed
//   no_shard                          1; replicas is 1 or world_size    yes
//   hybrid_shard, hybrid_shard_zero2  world_size / replicas; replicas   yes
//                                     1: as many as hosts
//
// Thread-safety: values.
#ifndef TESSERA_COORDINATOR_MESH_H_
#define TESSERA_COORDINATOR_MESH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

struct Mesh {
  v1::ShardingStrategy strategy = v1::FULL_SHARD;
  int world_size = 1;
  int shard_count = 1;
  int replica_count = 1;
  int local_world_size = 1;  // ranks of a host; the last host may have fewer
  int reshard_group = 0;     // 0: over the shard group

  int ShardIndex(int rank) const { return rank % shard_count; }
  int ReplicaIndex(int rank) const { return rank / shard_count; }
  int HostOf(int rank) const { return rank / local_world_size; }
  int Hosts() const { return (world_size + local_world_size - 1) / local_world_size; }
  // Ranks of a host, and shard groups of which it has at least one.
  int RanksOf(int host) const;
  int ShardGroupsOf(int host) const;
  // Whether every shard group lies within one host.
  bool GroupsShareMemory() const;
  // The ranks of `rank`'s groups, in their order.
  std::vector<int> ShardGroup(int rank) const;
  std::vector<int> ReplicaGroup(int rank) const;
};

// "hybrid_shard" and so on. UNSPECIFIED: no such strategy.
v1::ShardingStrategy StrategyOf(absl::string_view name);
std::string StrategyName(v1::ShardingStrategy strategy);

// SHARD_GRAD_OP and HYBRID_SHARD_ZERO2: a unit stays whole from its forward to its backward.
bool KeepsUnitsWhole(v1::ShardingStrategy strategy);
bool IsHybrid(v1::ShardingStrategy strategy);

// `spec` is resolved. INVALID_ARGUMENT, with the field: world_size is not in [1, kMaxWorkers]; the
// ranks cannot be divided as mesh.replicas, mesh.local_world_size or mesh.reshard_group say; a
// shard group of a hybrid strategy does not fit in a host; no_shard has other replicas than ranks.
absl::StatusOr<Mesh> MakeMesh(const v1::MeshSpec& spec, int world_size);

// The mesh of a layout.
Mesh MeshOf(const v1::Layout& layout);

// What a unit of the mesh may have as mesh.reshard_group. INVALID_ARGUMENT for `field`: it does not
// divide the shard group, or units of `strategy` are never sharded over less than all.
absl::Status CheckReshardGroup(absl::string_view field, int64_t reshard_group,
                               v1::ShardingStrategy strategy, int shard_count);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MESH_H_
