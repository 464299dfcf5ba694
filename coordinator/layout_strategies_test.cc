// Layouts of the strategies beside full_shard, of units with settings of their own, and what of
// each parameter a rank has. Numbers are worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/device_arena.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "coordinator/layout.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Layout Lay(const v1::Plan& plan, const std::string& more, int world_size) {
  const auto layout = MakeLayout(
      plan, TestJob(absl::StrCat(kTightSlots, more.empty() ? "" : ",", more)), world_size);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : v1::Layout();
}

TEST(LayoutStrategiesTest, ShardGradOpHasAPlaceForEachUnit) {
  const v1::Layout layout = Lay(ThreeUnits(30, 40, 3), R"("mesh":{"strategy":"shard_grad_op"})", 2);
  EXPECT_EQ(layout.sharding_strategy(), v1::SHARD_GRAD_OP);
  EXPECT_EQ(layout.shard_count(), 2);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()),
              ElementsAre("0+120@unit 0", "128+160@unit 1", "384+16@unit 2"));
  // Gradients are reduced as ever.
  EXPECT_THAT(SlotShapes(layout.gradient_slots()),
              ElementsAre("0+16@0", "128+160@1", "384+160@spare"));
  EXPECT_THAT(layout.reshard_slots(), IsEmpty());
}

// Slots are as long as in float32, gradient buffers as in bfloat16.
TEST(LayoutStrategiesTest, FullPrecisionInEvaluationTakesLongerSlots) {
  const v1::Plan full = ThreeUnits(30, 40, 3);
  v1::Plan half = full;
  for (v1::Unit& unit : *half.mutable_units()) unit.set_param_dtype(v1::BFLOAT16);
  for (const char* mesh : {R"("mesh":{})", R"("mesh":{"strategy":"shard_grad_op"})"}) {
    const auto lay = [&](const v1::Plan& plan, bool in_eval) {
      v1::JobSpec job = TestJob(absl::StrCat(kTightSlots, ",", mesh));
      job.mutable_mixed_precision()->set_full_precision_eval(in_eval);
      return *MakeLayout(plan, job, 2);
    };
    const v1::Layout layout = lay(half, true);
    EXPECT_TRUE(layout.full_precision_eval());
    EXPECT_EQ(SlotShapes(layout.unsharded_slots()), SlotShapes(lay(full, false).unsharded_slots()));
    EXPECT_EQ(SlotShapes(layout.gradient_slots()), SlotShapes(lay(half, false).gradient_slots()));
    EXPECT_NE(layout.layout_fingerprint(), lay(half, false).layout_fingerprint());
    // A model that trains in its own dtype evaluates in it.
    EXPECT_EQ(lay(full, true).layout_fingerprint(), lay(full, false).layout_fingerprint());
  }
  v1::JobSpec job = TestJob(R"("memory":{"unshard":"resident"})");
  job.mutable_mixed_precision()->set_full_precision_eval(true);
  EXPECT_EQ(Field(MakeLayout(half, job, 2).status()), "memory.unshard");
  job.mutable_memory()->set_unshard("auto");
  EXPECT_EQ(MakeLayout(half, job, 2)->unshard_mode(), v1::SLOTS);
}

TEST(LayoutStrategiesTest, NoShardHasEverythingOnEveryRank) {
  const v1::Layout layout = Lay(ThreeUnits(30, 40, 3), R"("mesh":{"strategy":"no_shard"})", 4);
  EXPECT_EQ(layout.shard_count(), 1);
  EXPECT_EQ(layout.replica_count(), 4);
  EXPECT_EQ(layout.units(0).shard_numel(), 30);
  EXPECT_EQ(layout.units(0).padded_numel(), 30);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()),
              ElementsAre("0+12@0", "128+160@1", "384+160@spare"));
  // As one rank alone has it.
  const v1::Layout alone = Lay(ThreeUnits(30, 40, 3), "", 1);
  EXPECT_EQ(layout.rank_file().DebugString(), alone.rank_file().DebugString());
  EXPECT_THAT(layout.notes(), IsEmpty());
}

TEST(LayoutStrategiesTest, HybridShardsWithinAHost) {
  const v1::Layout layout =
      Lay(ThreeUnits(32, 40, 8), R"("mesh":{"strategy":"hybrid_shard","local_world_size":4})", 8);
  EXPECT_EQ(layout.shard_count(), 4);
  EXPECT_EQ(layout.replica_count(), 2);
  EXPECT_EQ(layout.local_world_size(), 4);
  EXPECT_EQ(layout.units(1).shard_numel(), 10);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()),
              ElementsAre("0+32@0", "128+160@1", "384+160@spare"));
  const v1::Layout zero2 = Lay(
      ThreeUnits(32, 40, 8), R"("mesh":{"strategy":"hybrid_shard_zero2","local_world_size":4})", 8);
  EXPECT_THAT(SlotShapes(zero2.unsharded_slots()),
              ElementsAre("0+128@unit 0", "128+160@unit 1", "384+32@unit 2"));
}

TEST(LayoutStrategiesTest, ReshardGroupsKeepAPart) {
  const v1::Layout layout = Lay(ThreeUnits(30, 40, 3), R"("mesh":{"reshard_group":2})", 4);
  // Halves of 32 and 40 elements; the root stays whole.
  EXPECT_THAT(SlotShapes(layout.gradient_slots()),
              ElementsAre("0+16@0", "128+160@1", "384+160@spare"));
  EXPECT_THAT(SlotShapes(layout.reshard_slots()), ElementsAre("640+64@unit 0", "768+80@unit 1"));
  EXPECT_EQ(layout.gradient_stride_bytes(), 4096);
  // Over all ranks is what full_shard does by itself; over one, a unit stays whole.
  const v1::Layout all = Lay(ThreeUnits(30, 40, 3), R"("mesh":{"reshard_group":4})", 4);
  EXPECT_THAT(all.reshard_slots(), IsEmpty());
  const v1::Layout one = Lay(ThreeUnits(30, 40, 3), R"("mesh":{"reshard_group":1})", 4);
  EXPECT_THAT(one.reshard_slots(), IsEmpty());
  EXPECT_THAT(SlotShapes(one.unsharded_slots()),
              ElementsAre("0+128@unit 0", "128+160@unit 1", "384+16@0"));
}

TEST(LayoutStrategiesTest, ResidentUnitsAreNotSharedAgain) {
  v1::JobSpec job = TestJob(R"("mesh":{"reshard_group":2},"memory":{"unshard":"resident"})");
  const v1::Layout layout = *MakeLayout(ThreeUnits(30, 40, 3), job, 4);
  EXPECT_THAT(layout.reshard_slots(), IsEmpty());
  ASSERT_EQ(layout.notes_size(), 1);
  EXPECT_THAT(layout.notes(0), HasSubstr("mesh.reshard_group has no effect"));
}

TEST(LayoutStrategiesTest, GradientsThatAccumulateInReduceDTypeHaveTheirOwnPlace) {
  v1::Plan plan = ThreeUnits(30, 40, 3);
  plan.mutable_units(0)->set_param_dtype(v1::BFLOAT16);
  plan.mutable_units(0)->set_unsynced_gradient_dtype(v1::FLOAT32);
  v1::JobSpec job = TestJob(kTightSlots);
  job.mutable_memory()->set_accumulate_unsynchronized(true);
  const v1::Layout layout = *MakeLayout(plan, job, 2);
  // "a" is written in bfloat16 in a slot of its level, and added up in float32.
  EXPECT_THAT(SlotShapes(layout.gradient_slots()),
              ElementsAre("0+160@unit 1", "256+16@unit 2", "384+60@1"));
  EXPECT_THAT(SlotShapes(layout.accumulation_slots()), ElementsAre("512+120@unit 0"));
  job.set_device("cuda");
  const v1::Layout gpu = *MakeLayout(plan, job, 2);
  EXPECT_EQ(gpu.staging_bytes(), 0);  // what accumulates is in reduce_dtype already
  EXPECT_EQ(DeviceArenaOf(gpu).bytes, 4096 + 4096);
  EXPECT_EQ(DeviceArenaOf(gpu).staging_offset, 8192);
  job.mutable_memory()->set_accumulate_unsynchronized(false);
  EXPECT_EQ(MakeLayout(plan, job, 2)->staging_bytes(), 120);
}

TEST(LayoutStrategiesTest, GradientShardsAreInTheirDType) {
  v1::Plan plan = ThreeUnits(32, 32, 32);
  for (v1::Unit& unit : *plan.mutable_units()) unit.set_gradient_dtype(v1::BFLOAT16);
  const v1::Layout layout = Lay(plan, "", 1);
  // 4,160 of record and three masters of 128 bytes, then gradients of 64.
  EXPECT_EQ(layout.units(0).gradient_offset_bytes(), 4160 + 3 * 128);
  EXPECT_EQ(layout.units(1).gradient_offset_bytes(), 4160 + 3 * 128 + 64);
  EXPECT_EQ(layout.units(0).optimizer_offset_bytes(), 4160 + 3 * 128 + 3 * 64);
}

TEST(LayoutStrategiesTest, OptimizerStateOfFloat64IsFloat64) {
  v1::Plan plan = ThreeUnits(32, 32, 32);
  v1::Unit* wide = plan.mutable_units(1);
  for (auto set : {&v1::Unit::set_original_dtype, &v1::Unit::set_gradient_dtype}) {
    (wide->*set)(v1::FLOAT64);
  }
  const v1::Layout layout = Lay(plan, "", 1);
  const int64_t two = layout.rank_file().optimizer_arrays();
  EXPECT_EQ(two, 2);
  EXPECT_EQ(layout.units(1).optimizer_offset_bytes() - layout.units(0).optimizer_offset_bytes(),
            two * 32 * 4);
  EXPECT_EQ(layout.units(2).optimizer_offset_bytes() - layout.units(1).optimizer_offset_bytes(),
            two * 32 * 8);
  EXPECT_EQ(layout.rank_file().undo_bytes(), 3 * 32 * 8);
}

TEST(LayoutStrategiesTest, UnitsHaveAlignmentsOfTheirOwn) {
  v1::Plan plan = ThreeUnits(30, 40, 3);
  v1::UnitParameter* second = plan.mutable_units(0)->add_parameters();
  second->set_fqn("a.v");
  second->set_numel(2);
  plan.mutable_units(0)->mutable_overrides()->set_param_align_bytes(128);
  plan.mutable_units(1)->mutable_overrides()->set_shard_align_bytes(256);
  const v1::Layout layout = Lay(plan, "", 2);
  EXPECT_EQ(layout.units(0).parameters(1).offset(), 32);
  EXPECT_EQ(layout.units(0).padded_numel(), 34);
  EXPECT_EQ(layout.units(1).shard_numel(), 64);
  EXPECT_EQ(layout.units(2).padded_numel(), 4);
}

TEST(LayoutStrategiesTest, UnitsHaveStrategiesOfTheirOwn) {
  v1::Plan plan = ThreeUnits(32, 40, 4);
  plan.mutable_units(1)->mutable_overrides()->set_strategy("shard_grad_op");
  plan.mutable_units(0)->mutable_overrides()->set_reshard_group(2);
  const v1::Layout layout = Lay(plan, "", 4);
  EXPECT_FALSE(layout.units(0).has_sharding_strategy());
  EXPECT_EQ(layout.units(1).sharding_strategy(), v1::SHARD_GRAD_OP);
  EXPECT_EQ(layout.units(0).reshard_group(), 2);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()),
              ElementsAre("0+160@unit 1", "256+16@0", "384+128@1"));
  EXPECT_THAT(SlotShapes(layout.reshard_slots()), ElementsAre("640+64@unit 0"));
  EXPECT_NE(layout.layout_fingerprint(), Lay(ThreeUnits(32, 40, 4), "", 4).layout_fingerprint());
}

TEST(LayoutStrategiesTest, RefusesUnitsThatTheJobCannotHave) {
  const auto refused = [](const std::string& mesh, const std::string& strategy, int64_t reshard) {
    v1::Plan plan = ThreeUnits(30, 40, 3);
    v1::WrapConfig* own = plan.mutable_units(0)->mutable_overrides();
    if (!strategy.empty()) own->set_strategy(strategy);
    if (reshard >= 0) own->set_reshard_group(reshard);
    return MakeLayout(plan, TestJob(mesh), 4).status();
  };
  const absl::Status no_shard = refused("", "no_shard", -1);
  EXPECT_EQ(Field(no_shard), "a");
  EXPECT_THAT(std::string(no_shard.message()), HasSubstr("mesh.strategy is full_shard"));
  EXPECT_EQ(Field(refused("", "hybrid_shard", -1)), "a");
  EXPECT_EQ(Field(refused("", "whole", -1)), "a");
  EXPECT_EQ(Field(refused(R"("mesh":{"strategy":"no_shard"})", "full_shard", -1)), "a");
  EXPECT_TRUE(refused(R"("mesh":{"strategy":"hybrid_shard"})", "hybrid_shard_zero2", -1).ok());
  EXPECT_TRUE(refused(R"("mesh":{"strategy":"shard_grad_op"})", "full_shard", 2).ok());
  const absl::Status uneven = refused("", "", 3);
  EXPECT_THAT(std::string(uneven.message()), HasSubstr("a: reshard_group: is 3"));
  EXPECT_THAT(std::string(refused("", "shard_grad_op", 2).message()),
              HasSubstr("not sharded again"));
  v1::Plan plan = ThreeUnits(30, 40, 3);
  plan.mutable_units(1)->mutable_overrides()->set_param_align_bytes(-1);
  EXPECT_THAT(std::string(MakeLayout(plan, TestJob(), 4).status().message()), HasSubstr("b: "));
}

TEST(LayoutStrategiesTest, AutoTakesResidentWhereShardGroupsShareMemory) {
  // Mesh, ranks -> resident.
  const std::vector<std::tuple<std::string, int, bool>> cases = {
      {R"({})", 4, true},
      {R"({"local_world_size":2})", 4, false},
      {R"({"local_world_size":2,"replicas":2})", 4, true},
      {R"({"strategy":"hybrid_shard","local_world_size":2})", 4, true},
      {R"({"strategy":"no_shard","local_world_size":1})", 4, true},
      {R"({"local_world_size":4,"replicas":4})", 12, false},  // groups of 3
  };
  for (const auto& [mesh, world_size, resident] : cases) {
    const auto layout =
        MakeLayout(ThreeUnits(30, 40, 3), TestJob(absl::StrCat("\"mesh\":", mesh)), world_size);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->unshard_mode() == v1::RESIDENT, resident) << mesh;
  }
}

TEST(LayoutStrategiesTest, SaysWhatIsNotSharded) {
  const auto note = [](const std::string& mesh, int world_size) {
    const v1::Layout layout =
        Lay(ThreeUnits(30, 40, 3), absl::StrCat("\"mesh\":", mesh), world_size);
    return layout.notes().empty() ? "" : layout.notes(0);
  };
  EXPECT_THAT(note(R"({"strategy":"shard_grad_op"})", 1), HasSubstr("One rank"));
  EXPECT_THAT(note(R"({"strategy":"no_shard"})", 1), HasSubstr("One rank"));
  EXPECT_THAT(note(R"({"replicas":4})", 4), HasSubstr("shard groups of one rank"));
  EXPECT_THAT(note(R"({"strategy":"hybrid_shard"})", 4), HasSubstr("nothing is replicated"));
  EXPECT_EQ(note(R"({"strategy":"no_shard"})", 4), "");
}

// A root that is no unit leaves the levels as they are, and the units below it their spares.
TEST(LayoutStrategiesTest, WithoutARootUnitLevelsBeginAtOne) {
  v1::Plan plan;
  AddTestUnit("a", 30, -1, &plan);
  AddTestUnit("b", 40, -1, &plan);
  const v1::Layout layout = Lay(plan, "", 2);
  EXPECT_EQ(layout.units(0).level(), 1);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+160@1", "256+160@spare"));
}

// The texts that fingerprints are of, as they were before there were other strategies.
TEST(LayoutStrategiesTest, FullShardOnOneHostIsDescribedAsBefore) {
  const v1::Layout layout = Lay(ThreeUnits(32, 32, 32), "", 2);
  EXPECT_EQ(LayoutText(layout, layout.units()),
            "tessera-layout 1\nplan p\nworld_size 2\nsharding_strategy FULL_SHARD\nshard_count 2\n"
            "replica_count 1\nunshard_mode SLOTS\nprefetch 1\ngradient_stride_bytes 4096\n"
            "unsharded_slot 0,128,0\nunsharded_slot 128,128,1\nunsharded_slot 256,128,-\n"
            "gradient_slot 0,128,0\ngradient_slot 128,128,1\ngradient_slot 256,128,-\n"
            "rank_file 4160,4928,192,5120\n"
            "unit a\nlevel 1\npadded_numel 32\nshard_numel 16\nregions 4160,4352,4544\n"
            "parameter 0 a.w\n"
            "unit b\nlevel 1\npadded_numel 32\nshard_numel 16\nregions 4224,4416,4672\n"
            "parameter 0 b.w\n"
            "unit \nlevel 0\npadded_numel 32\nshard_numel 16\nregions 4288,4480,4800\n"
            "parameter 0 w\n");
}

TEST(LayoutStrategiesTest, WhatIsNewIsInTheFingerprint) {
  v1::Plan plan = ThreeUnits(32, 40, 4);
  plan.mutable_units(1)->mutable_overrides()->set_strategy("shard_grad_op");
  const v1::Layout layout = Lay(plan, R"("mesh":{"reshard_group":2,"local_world_size":2})", 4);
  const std::string text = LayoutText(layout, layout.units());
  for (const char* line :
       {"\nlocal_world_size 2\nreshard_group 2\nreshard_slot 640,64,-,0\nrank_file",
        "\nsharding_strategy SHARD_GRAD_OP\nparameter 0 b.w"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(LayoutStrategiesTest, RanksOfSeveralHostsHaveStagingForSums) {
  const auto lay = [](const std::string& mesh) {
    return Lay(ThreeUnits(32, 40, 8), absl::StrCat(R"("mesh":{)", mesh, "}"), 4);
  };
  const v1::Layout one = lay(R"("strategy":"hybrid_shard","replicas":2)");
  EXPECT_EQ(one.staging_bytes(), 0);
  // 20 elements of "b" in float32, and two pieces that arrive.
  const v1::Layout two = lay(R"("strategy":"hybrid_shard","local_world_size":2)");
  EXPECT_EQ(two.staging_bytes(), 20 * 4 + 2 * 524'288);
  EXPECT_EQ(two.gradient_stride_bytes(), one.gradient_stride_bytes() + 4096 + 2 * 524'288);
  EXPECT_THAT(LayoutText(two, two.units()),
              HasSubstr("\nlocal_world_size 2\nstaging_bytes 1048656\n"));
  // A shard group over two hosts does not run.
  EXPECT_EQ(lay(R"("local_world_size":2)").staging_bytes(), 0);
}

struct Shard {
  int64_t offset, numel, first, last;
  bool operator==(const Shard&) const = default;
};

std::vector<Shard> ShardsOfRank(const v1::Plan& plan, const v1::Layout& layout, int rank) {
  std::vector<Shard> shards;
  for (const ParameterShard& shard : ShardsOf(plan.units(0), layout.units(0), layout, rank)) {
    if (!shard.in_shard) shards.push_back({-1, 0, 0, 0});
    if (shard.in_shard) {
      shards.push_back({shard.offset_in_shard, shard.numel_in_shard, shard.first, shard.last});
    }
  }
  return shards;
}

v1::Plan OneUnit(const std::vector<int64_t>& numels, v1::DType dtype) {
  v1::Plan plan;
  v1::Unit* unit = AddTestUnit("", numels[0], -1, &plan);
  unit->set_param_dtype(dtype);
  for (size_t i = 1; i < numels.size(); ++i) {
    unit->add_parameters()->set_numel(numels[i]);
  }
  return plan;
}

constexpr char kFsdpAligned[] =
    R"("wrap":{"param_align_bytes":16,"shard_align_bytes":0},"memory":{"unshard":"slots"})";

// FSDP's vector "aligned fp32, numels 21, 35, 25, W=2".
TEST(ShardsOfTest, AlignedFloat32) {
  const v1::Plan plan = OneUnit({21, 35, 25}, v1::FLOAT32);
  const v1::Layout layout = *MakeLayout(plan, TestJob(kFsdpAligned), 2);
  EXPECT_THAT(ShardsOfRank(plan, layout, 0),
              ElementsAre(Shard{0, 21, 0, 20}, Shard{24, 19, 0, 18}, Shard{-1, 0, 0, 0}));
  EXPECT_THAT(ShardsOfRank(plan, layout, 1),
              ElementsAre(Shard{-1, 0, 0, 0}, Shard{0, 16, 19, 34}, Shard{17, 25, 0, 24}));
}

// "aligned fp16 compute, numels 10, 25, 15, W=2", on each of two replicas.
TEST(ShardsOfTest, AlignedFloat16OnReplicas) {
  const v1::Plan plan = OneUnit({10, 25, 15}, v1::FLOAT16);
  const v1::Layout layout =
      *MakeLayout(plan, TestJob(absl::StrCat(kFsdpAligned, R"(,"mesh":{"replicas":2})")), 4);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ShardsOfRank(plan, layout, rank),
                ElementsAre(Shard{0, 10, 0, 9}, Shard{16, 16, 0, 15}, Shard{-1, 0, 0, 0}));
  }
  for (const int rank : {1, 3}) {
    EXPECT_THAT(ShardsOfRank(plan, layout, rank),
                ElementsAre(Shard{-1, 0, 0, 0}, Shard{0, 9, 16, 24}, Shard{16, 15, 0, 14}));
  }
}

TEST(ShardsOfTest, EmptyParametersAreInNoShard) {
  v1::Plan plan = OneUnit({5, 0, 3}, v1::FLOAT32);
  const v1::Layout layout = *MakeLayout(plan, TestJob(kTightSlots), 2);
  EXPECT_EQ(layout.units(0).padded_numel(), 8);
  EXPECT_THAT(ShardsOfRank(plan, layout, 0),
              ElementsAre(Shard{0, 4, 0, 3}, Shard{-1, 0, 0, 0}, Shard{-1, 0, 0, 0}));
  EXPECT_THAT(ShardsOfRank(plan, layout, 1),
              ElementsAre(Shard{0, 1, 4, 4}, Shard{-1, 0, 0, 0}, Shard{1, 3, 0, 2}));
}

}  // namespace
}  // namespace tessera
