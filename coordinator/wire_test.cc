// The bytes of semantics.md 6.3, with N = 160 elements of float32 in units of 64, 64 and 32.
#include "coordinator/wire.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/layout.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

StepTraffic Traffic(const v1::Plan& plan, const std::string& mesh, int world_size,
                    int64_t micro_batches = 1, int64_t reductions = 1) {
  const auto layout =
      MakeLayout(plan, TestJob(absl::StrCat(kTightSlots, ",\"mesh\":{", mesh, "}")), world_size);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return TrafficOf(plan, *layout, micro_batches, reductions);
}

int64_t Total(const v1::Plan& plan, const std::string& mesh, int world_size,
              int64_t micro_batches = 1, int64_t reductions = 1) {
  return Traffic(plan, mesh, world_size, micro_batches, reductions).TotalBytes();
}

TEST(WireTest, EveryStrategyByHand) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  // 3/4 x (4 x (2 x 160 - 32) + 4 x 160)
  EXPECT_EQ(Total(plan, "", 4), 1'344);
  // 3/4 x 8 x 160
  EXPECT_EQ(Total(plan, R"("strategy":"shard_grad_op")", 4), 960);
  // 2 x 3/4 x 4 x 160
  EXPECT_EQ(Total(plan, R"("strategy":"no_shard")", 4), 960);
  // Within pairs 1/2 x (4 x 288 + 640), between them 2 x 1/2 x 640 / 2.
  const StepTraffic hybrid = Traffic(plan, R"("strategy":"hybrid_shard","local_world_size":2)", 4);
  EXPECT_EQ(hybrid.shard_ring_bytes.at(2), 896);
  EXPECT_EQ(hybrid.replica_ring_bytes, 320);
  const StepTraffic zero2 =
      Traffic(plan, R"("strategy":"hybrid_shard_zero2","local_world_size":2)", 4);
  EXPECT_EQ(zero2.shard_ring_bytes.at(2), 640);
  EXPECT_EQ(zero2.replica_ring_bytes, 320);
  // full_shard with replicas is hybrid in all but its hosts.
  EXPECT_EQ(Total(plan, R"("replicas":2)", 4), 1'216);
  // Over four once, over pairs once (the root not at all), reduced over four.
  const StepTraffic reshard = Traffic(plan, R"("reshard_group":2)", 4);
  EXPECT_EQ(reshard.shard_ring_bytes.at(4), 480 + 480);
  EXPECT_EQ(reshard.shard_ring_bytes.at(2), 256);
}

TEST(WireTest, ARootThatIsLetGoOfIsGatheredTwice) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  v1::JobSpec job = TestJob(std::string(kTightSlots));
  job.mutable_memory()->set_reshard_root(true);
  // 3/4 x (4 x 2 x 160 + 4 x 160)
  EXPECT_EQ(TrafficOf(plan, *MakeLayout(plan, job, 4), 1, 1).TotalBytes(), 1'440);
}

TEST(WireTest, FullShardIsThreeTimesTheModelLessTheRoot) {
  // 999/1000 x 4 x (3N - N_root), where the root is a thousandth of N.
  v1::Plan plan;
  for (int i = 0; i < 999; ++i) AddTestUnit(absl::StrCat("u", i), 64'000, 999, &plan);
  AddTestUnit("", 64'000, -1, &plan);
  EXPECT_EQ(Total(plan, "", 1'000), int64_t{999} * 64 * 4 * (3 * 1'000 - 1));
}

TEST(WireTest, MicroBatches) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  EXPECT_EQ(Total(plan, "", 4, 3, 3), 3 * 1'344);
  // Six gathers and one reduction; the root is gathered once a micro-batch.
  EXPECT_EQ(Total(plan, "", 4, 3, 1), 3 * 864 + 480);
  // Parameters stay between micro-batches that do not synchronise: one of each.
  EXPECT_EQ(Total(plan, R"("strategy":"shard_grad_op")", 4, 3, 3), 3 * 960);
  EXPECT_EQ(Total(plan, R"("strategy":"shard_grad_op")", 4, 3, 1), 960);
  EXPECT_EQ(Total(plan, R"("strategy":"no_shard")", 4, 3, 1), 960);
}

TEST(WireTest, FrozenUnitsAreGatheredAndNotReduced) {
  v1::Plan plan = ThreeUnits(64, 64, 32);
  plan.mutable_units(0)->mutable_parameters(0)->set_requires_grad(false);
  EXPECT_EQ(Total(plan, "", 4), 1'344 - 3 * 64);
  EXPECT_EQ(Total(plan, R"("strategy":"no_shard")", 4), 960 - 2 * 3 * 64);
}

TEST(WireTest, DTypesOfEachDirection) {
  v1::Plan plan = ThreeUnits(64, 64, 32);
  for (v1::Unit& unit : *plan.mutable_units()) unit.set_param_dtype(v1::BFLOAT16);
  // 3/4 x (2 x 288 + 4 x 160)
  EXPECT_EQ(Total(plan, "", 4), 912);
  EXPECT_EQ(Total(plan, R"("strategy":"no_shard")", 4), 960);
}

TEST(WireTest, UnitsOfTheirOwnStrategy) {
  v1::Plan plan = ThreeUnits(64, 64, 32);
  plan.mutable_units(0)->mutable_overrides()->set_strategy("shard_grad_op");
  EXPECT_EQ(Total(plan, "", 4), 1'344 - 3 * 64);
}

TEST(WireTest, OneRankSendsNothing) {
  for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"}) {
    const StepTraffic traffic =
        Traffic(ThreeUnits(64, 64, 32), absl::StrCat(R"("strategy":")", strategy, "\""), 1);
    EXPECT_EQ(traffic.TotalBytes(), 0);
    EXPECT_EQ(traffic.collectives, 0);
    EXPECT_EQ(traffic.largest_message_unit, -1);
  }
}

TEST(WireTest, CountsCollectivesAndTheLargest) {
  const v1::Plan plan = ThreeUnits(64, 80, 32);
  const StepTraffic full = Traffic(plan, "", 4);
  EXPECT_EQ(full.collectives, 5 + 3);  // two gathers of each but the root, three reductions
  EXPECT_EQ(full.largest_message_bytes, 320);
  EXPECT_EQ(full.largest_message_unit, 1);
  EXPECT_EQ(Traffic(plan, "", 4, 2, 1).collectives, 10 + 3);
  EXPECT_EQ(Traffic(plan, R"("strategy":"no_shard")", 4).collectives, 3);
  EXPECT_EQ(Traffic(plan, R"("replicas":2)", 4).collectives, 5 + 3 + 3);
}

TEST(WireTest, ReplicasThatDoNotDivideAShardSendItsLastPieceWhole) {
  // 3 replicas of shards of 64 elements: pieces of 22.
  const StepTraffic traffic = Traffic(ThreeUnits(64, 64, 64), R"("strategy":"no_shard")", 3);
  EXPECT_EQ(traffic.replica_ring_bytes, 3 * 2 * 2 * 22 * 4);
}

struct Sent {
  int64_t intra, inter;
  bool operator==(const Sent&) const = default;
};

std::vector<Sent> ByRank(const std::string& mesh, int world_size) {
  const v1::Plan plan = ThreeUnits(64, 64, 32);
  const v1::JobSpec job = TestJob(absl::StrCat(kTightSlots, ",\"mesh\":{", mesh, "}"));
  const v1::Layout layout = *MakeLayout(plan, job, world_size);
  const StepTraffic traffic = TrafficOf(plan, layout, 1, 1);
  std::vector<Sent> sent;
  for (int rank = 0; rank < world_size; ++rank) {
    const RankTraffic own = TrafficOfRank(traffic, layout, rank);
    sent.push_back({own.intra_host_bytes, own.inter_host_bytes});
  }
  return sent;
}

TEST(WireTest, WhatStaysOnAHost) {
  // One ring over two hosts: the last rank of each sends to the other.
  EXPECT_EQ(ByRank(R"("local_world_size":2)", 4),
            (std::vector<Sent>{{1'344, 0}, {0, 1'344}, {1'344, 0}, {0, 1'344}}));
  // Hybrid sends its shards within hosts and its sums between them.
  EXPECT_EQ(ByRank(R"("strategy":"hybrid_shard","local_world_size":2)", 4),
            (std::vector<Sent>{{896, 320}, {896, 320}, {896, 320}, {896, 320}}));
  // Pairs within hosts, the ring of four over both.
  EXPECT_EQ(ByRank(R"("reshard_group":2,"local_world_size":2)", 4),
            (std::vector<Sent>{{1'216, 0}, {256, 960}, {1'216, 0}, {256, 960}}));
  EXPECT_EQ(ByRank("", 2), (std::vector<Sent>{{896, 0}, {896, 0}}));
}

}  // namespace
}  // namespace tessera
