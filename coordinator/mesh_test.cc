#include "coordinator/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "common/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::MeshSpec Spec(const std::string& strategy, int64_t replicas = 1, int64_t local = 0,
                  int64_t reshard = 0) {
  v1::MeshSpec spec;
  spec.set_strategy(strategy);
  spec.set_replicas(replicas);
  spec.set_local_world_size(local);
  spec.set_reshard_group(reshard);
  return spec;
}

Mesh Make(const v1::MeshSpec& spec, int world_size) {
  const auto mesh = MakeMesh(spec, world_size);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return mesh.ok() ? *mesh : Mesh();
}

TEST(MeshTest, GroupsOfEveryStrategy) {
  // Strategy, replicas, ranks of a host, ranks -> shard group, replicas.
  const std::vector<std::tuple<std::string, int, int, int, int, int>> cases = {
      {"full_shard", 1, 0, 8, 8, 1},         {"full_shard", 2, 0, 8, 4, 2},
      {"full_shard", 8, 0, 8, 1, 8},         {"full_shard", 2, 2, 12, 6, 2},
      {"shard_grad_op", 1, 4, 8, 8, 1},      {"shard_grad_op", 4, 4, 8, 2, 4},
      {"no_shard", 1, 0, 8, 1, 8},           {"no_shard", 8, 4, 8, 1, 8},
      {"hybrid_shard", 1, 8, 16, 8, 2},      {"hybrid_shard", 4, 8, 16, 4, 4},
      {"hybrid_shard", 1, 0, 6, 6, 1},       {"hybrid_shard", 16, 6, 48, 3, 16},
      {"hybrid_shard_zero2", 1, 2, 6, 2, 3}, {"hybrid_shard_zero2", 1, 1, 4, 1, 4},
      {"full_shard", 1, 0, 1, 1, 1},
  };
  for (const auto& [strategy, replicas, local, world_size, shards, copies] : cases) {
    SCOPED_TRACE(strategy + " over " + std::to_string(world_size));
    const Mesh mesh = Make(Spec(strategy, replicas, local), world_size);
    EXPECT_EQ(mesh.shard_count, shards);
    EXPECT_EQ(mesh.replica_count, copies);
  }
}

// FSDP's default groups with 8 ranks a node: rank 3 shards with 0..7 and replicates with 11.
TEST(MeshTest, HybridGroupsAreFsdps) {
  const Mesh mesh = Make(Spec("hybrid_shard", 1, 8), 24);
  EXPECT_THAT(mesh.ShardGroup(3), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(mesh.ReplicaGroup(3), ElementsAre(3, 11, 19));
  EXPECT_THAT(mesh.ShardGroup(17), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_EQ(mesh.ShardIndex(19), 3);
  EXPECT_EQ(mesh.ReplicaIndex(19), 2);
  EXPECT_EQ(mesh.HostOf(19), 2);
  EXPECT_EQ(mesh.Hosts(), 3);
  EXPECT_TRUE(mesh.GroupsShareMemory());
}

TEST(MeshTest, EveryRankOfNoShardIsAReplica) {
  const Mesh mesh = Make(Spec("no_shard", 1, 2), 4);
  EXPECT_THAT(mesh.ShardGroup(2), ElementsAre(2));
  EXPECT_THAT(mesh.ReplicaGroup(2), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(mesh.ShardGroupsOf(1), 2);
  EXPECT_TRUE(mesh.GroupsShareMemory());
}

TEST(MeshTest, HostsThatAreNotEqual) {
  const Mesh mesh = Make(Spec("full_shard", 1, 2), 5);
  EXPECT_EQ(mesh.Hosts(), 3);
  EXPECT_EQ(mesh.RanksOf(0), 2);
  EXPECT_EQ(mesh.RanksOf(2), 1);
  EXPECT_EQ(mesh.ShardGroupsOf(0), 1);
  EXPECT_FALSE(mesh.GroupsShareMemory());
}

TEST(MeshTest, ShardGroupsThatReachOverHostsCountOnBoth) {
  const Mesh mesh = Make(Spec("full_shard", 4, 5), 20);  // groups of 5 on hosts of 5
  EXPECT_TRUE(mesh.GroupsShareMemory());
  const Mesh uneven = Make(Spec("full_shard", 4, 4), 20);
  EXPECT_EQ(uneven.ShardGroupsOf(0), 1);
  EXPECT_EQ(uneven.ShardGroupsOf(1), 2);  // ranks 4 to 7: of 0..4 and of 5..9
  EXPECT_FALSE(uneven.GroupsShareMemory());
}

TEST(MeshTest, MoreRanksAHostThanRanksIsOneHost) {
  const Mesh mesh = Make(Spec("hybrid_shard", 1, 8), 4);
  EXPECT_EQ(mesh.Hosts(), 1);
  EXPECT_EQ(mesh.shard_count, 4);
}

TEST(MeshTest, RefusesWhatCannotBeDivided) {
  const std::vector<std::tuple<v1::MeshSpec, int, std::string, std::string>> cases = {
      {Spec("full_shard"), 0, "world_size", "is 0; give 1 to 65536"},
      {Spec("full_shard"), 65'537, "world_size", "65537"},
      {Spec("fuller_shard"), 2, "mesh.strategy", "\"fuller_shard\" is unknown"},
      {Spec("full_shard", 3), 8, "mesh.replicas", "is 3, which does not divide the 8 ranks"},
      {Spec("no_shard", 2), 8, "mesh.replicas", "each of the 8 ranks is a replica"},
      {Spec("hybrid_shard", 1, 4), 10, "mesh.local_world_size",
       "is 4, which does not divide the 10 ranks"},
      {Spec("hybrid_shard", 1, 4), 6, "mesh.local_world_size", "does not divide the 6 ranks"},
      {Spec("hybrid_shard", 2, 4), 16, "mesh.replicas", "makes shard groups of 8 ranks"},
      {Spec("full_shard", 1, 0, 3), 8, "mesh.reshard_group",
       "is 3, which does not divide the 8 ranks of a shard group"},
      {Spec("full_shard", 2, 0, 8), 8, "mesh.reshard_group", "the 4 ranks of a shard group"},
      {Spec("no_shard", 1, 0, 2), 8, "mesh.reshard_group", "no_shard"},
  };
  for (const auto& [spec, world_size, field, because] : cases) {
    const auto mesh = MakeMesh(spec, world_size);
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument) << because;
    EXPECT_EQ(Field(mesh.status()), field) << mesh.status();
    EXPECT_THAT(std::string(mesh.status().message()), HasSubstr(because));
  }
}

TEST(MeshTest, LayoutsRememberTheirMesh) {
  v1::Layout layout;
  layout.set_sharding_strategy(v1::HYBRID_SHARD);
  layout.set_world_size(16);
  layout.set_shard_count(8);
  layout.set_replica_count(2);
  EXPECT_EQ(MeshOf(layout).local_world_size, 16);
  layout.set_local_world_size(8);
  EXPECT_EQ(MeshOf(layout).Hosts(), 2);
  EXPECT_EQ(MeshOf(layout).ReplicaIndex(9), 1);
}

TEST(MeshTest, StrategiesHaveNames) {
  for (const char* name :
       {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"}) {
    EXPECT_EQ(StrategyName(StrategyOf(name)), name);
  }
  EXPECT_EQ(StrategyOf("FULL_SHARD"), v1::SHARDING_STRATEGY_UNSPECIFIED);
}

}  // namespace
}  // namespace tessera
