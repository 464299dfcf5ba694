#include "coordinator/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/job_spec.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

v1::JobSpec Job(const std::string& more = "", const std::string& unshard = "slots") {
  auto spec = ParseJobSpec(absl::StrCat(R"({"name":"j")", more, "}"), "job.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto resolved = ResolveJobSpec(*std::move(spec));
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  resolved->mutable_memory()->set_unshard(unshard);
  return *resolved;
}

// No padding anywhere but between regions and slots.
constexpr char kTight[] = R"(,"wrap":{"param_align_bytes":0,"shard_align_bytes":0})";

constexpr char kCuda[] = R"(,"device":"cuda")";

void AddUnit(const std::string& fqn, std::vector<int64_t> numels, int enclosing, v1::Plan* plan,
             v1::DType param_dtype = v1::FLOAT32) {
  v1::Unit* unit = plan->add_units();
  unit->set_fqn(fqn);
  unit->set_original_dtype(v1::FLOAT32);
  unit->set_param_dtype(param_dtype);
  unit->set_reduce_dtype(param_dtype);
  if (enclosing >= 0) unit->set_enclosing_unit(enclosing);
  for (const int64_t numel : numels) {
    v1::UnitParameter* parameter = unit->add_parameters();
    parameter->set_fqn(absl::StrCat(fqn, ".", unit->parameters_size()));
    parameter->set_numel(numel);
    parameter->set_requires_grad(true);
    unit->set_numel(unit->numel() + numel);
  }
}

// Two outer units below the root, two units in each.
v1::Plan NestedPlan() {
  v1::Plan plan;
  plan.set_plan_fingerprint("p");
  AddUnit("a.x", {10}, 2, &plan);
  AddUnit("a.y", {20}, 2, &plan);
  AddUnit("a", {30}, 6, &plan);
  AddUnit("b.x", {40}, 5, &plan);
  AddUnit("b.y", {5}, 5, &plan);
  AddUnit("b", {7}, 6, &plan);
  AddUnit("", {3}, -1, &plan);
  return plan;
}

v1::Layout Layout(const v1::Plan& plan, const v1::JobSpec& job, int world_size) {
  const auto layout = MakeLayout(plan, job, world_size);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : v1::Layout();
}

TEST(LayoutTest, SlotsByLevelThenSpares) {
  const v1::Layout layout = Layout(NestedPlan(), Job(kTight), 1);
  std::vector<int> levels;
  for (const v1::UnitLayout& unit : layout.units()) levels.push_back(unit.level());
  EXPECT_THAT(levels, ElementsAre(2, 2, 1, 2, 2, 1, 0));
  // 3, 30 and 40 elements are the largest of their levels, 40 below the root.
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()),
              ElementsAre("0+12@0", "128+120@1", "256+160@2", "512+160@spare"));
  EXPECT_THAT(SlotShapes(layout.gradient_slots()),
              ElementsAre("0+12@0", "128+120@1", "256+160@2", "512+160@spare"));
  EXPECT_EQ(layout.gradient_stride_bytes(), 4096);
}

TEST(LayoutTest, PrefetchAndLiveUnitsAddSpares) {
  const auto count = [](const std::string& memory) {
    const v1::Layout layout =
        Layout(NestedPlan(), Job(absl::StrCat(kTight, R"(,"memory":)", memory)), 1);
    EXPECT_EQ(layout.gradient_slots_size(), 4);
    return layout.unsharded_slots_size();
  };
  EXPECT_EQ(count(R"({"prefetch":0})"), 3);
  EXPECT_EQ(count(R"({"prefetch":2})"), 5);
  EXPECT_EQ(count(R"({"prefetch":1,"max_live_units":3})"), 4);
  EXPECT_EQ(count(R"({"prefetch":1,"max_live_units":5})"), 6);
  EXPECT_EQ(count(R"({"prefetch":0,"max_live_units":5})"), 5);
  // Six units below the root and the root itself.
  EXPECT_EQ(count(R"({"prefetch":1,"max_live_units":100})"), 7);
  EXPECT_EQ(count(R"({"prefetch":100})"), 7);
}

TEST(LayoutTest, OneBlockNeedsNoSpare) {
  v1::Plan plan;
  AddUnit("a", {32}, 1, &plan);
  AddUnit("", {32}, -1, &plan);
  const v1::Layout layout = Layout(plan, Job(), 1);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+128@0", "128+128@1"));
  EXPECT_THAT(SlotShapes(layout.gradient_slots()), ElementsAre("0+128@0", "128+128@1"));
}

TEST(LayoutTest, UnitsWithoutElementsTakeNoPlace) {
  v1::Plan plan;
  AddUnit("a", {32}, 2, &plan);
  AddUnit("b", {}, 2, &plan);
  AddUnit("", {}, -1, &plan);
  const v1::Layout layout = Layout(plan, Job(), 2);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+256@1"));
  EXPECT_EQ(layout.units(1).padded_numel(), 0);
  EXPECT_EQ(layout.units(1).parameter_offset_bytes(), 0);
  EXPECT_EQ(layout.units(2).optimizer_offset_bytes(), 0);
  // Record 4,096 + 3 tags = 4,160; 32 elements a rank of 4 + 4 + 8 bytes, and 12 for the undo.
  EXPECT_EQ(layout.rank_file().total_bytes(), 4160 + 32 * 16 + 32 * 12);
}

TEST(LayoutTest, RootAloneHasOneSlot) {
  v1::Plan plan;
  AddUnit("", {100}, -1, &plan);
  const v1::Layout layout = Layout(plan, Job(), 4);
  // 25 elements a shard, up to 32 for 128 bytes.
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+512@0"));
  EXPECT_THAT(SlotShapes(layout.gradient_slots()), ElementsAre("0+512@0"));
}

TEST(LayoutTest, RankFileByHand) {
  const v1::Layout layout = Layout(NestedPlan(), Job(kTight), 1);
  std::vector<int64_t> parameters, gradients, optimizer;
  for (const v1::UnitLayout& unit : layout.units()) {
    parameters.push_back(unit.parameter_offset_bytes());
    gradients.push_back(unit.gradient_offset_bytes());
    optimizer.push_back(unit.optimizer_offset_bytes());
  }
  EXPECT_EQ(layout.rank_file().record_bytes(), 4160);
  EXPECT_THAT(parameters, ElementsAre(4160, 4224, 4352, 4480, 4672, 4736, 4800));
  EXPECT_THAT(gradients, ElementsAre(4864, 4928, 5056, 5184, 5376, 5440, 5504));
  EXPECT_THAT(optimizer, ElementsAre(5568, 5696, 5888, 6144, 6464, 6528, 6592));
  EXPECT_EQ(layout.rank_file().undo_offset_bytes(), 6656);
  EXPECT_EQ(layout.rank_file().undo_bytes(), 480);
  EXPECT_EQ(layout.rank_file().total_bytes(), 7136);
}

TEST(LayoutTest, AlignsInBytesOfParamDType) {
  v1::Plan plan;
  AddUnit("", {100, 24}, -1, &plan, v1::BFLOAT16);
  const v1::Layout layout = Layout(plan, Job(), 2);
  EXPECT_EQ(layout.units(0).parameters(0).offset(), 0);
  EXPECT_EQ(layout.units(0).parameters(1).offset(), 104);
  EXPECT_EQ(layout.units(0).padded_numel(), 128);
  EXPECT_EQ(layout.units(0).shard_numel(), 64);
  // Slots in bfloat16, master shards in float32.
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+256@0"));
  EXPECT_EQ(layout.units(0).gradient_offset_bytes() - layout.units(0).parameter_offset_bytes(),
            256);
}

TEST(LayoutTest, ResidentUnitsHaveAPlaceEachAndTheMasterIsThere) {
  v1::Plan plan;
  AddUnit("a", {32}, 2, &plan);
  AddUnit("b", {}, 2, &plan);
  AddUnit("", {100}, -1, &plan);
  const v1::Layout layout = Layout(plan, Job("", "resident"), 2);
  EXPECT_EQ(layout.unshard_mode(), v1::RESIDENT);
  EXPECT_EQ(layout.prefetch(), 0);
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+256@unit 0", "256+512@unit 2"));
  // One unit below the root: gradients as ever.
  EXPECT_THAT(SlotShapes(layout.gradient_slots()), ElementsAre("0+512@0", "512+256@1"));
  EXPECT_EQ(layout.units(0).parameter_offset_bytes(), 0);
  // Record 4,160; 32 and 64 elements a rank of 4 + 8 bytes; 64 x 12 for the undo.
  EXPECT_EQ(layout.rank_file().total_bytes(), 4160 + 96 * 12 + 64 * 12);
}

TEST(LayoutTest, ResidentInLowPrecisionKeepsMastersApart) {
  v1::Plan plan;
  AddUnit("", {100}, -1, &plan, v1::BFLOAT16);
  const v1::Layout layout = Layout(plan, Job("", "resident"), 2);
  // 50 elements a shard, up to 64 for 128 bytes.
  EXPECT_THAT(SlotShapes(layout.unsharded_slots()), ElementsAre("0+256@unit 0"));
  EXPECT_EQ(layout.units(0).parameter_offset_bytes(), 4160);
  EXPECT_EQ(layout.rank_file().total_bytes(), 4160 + 64 * (4 + 4 + 8) + 64 * 12);
}

TEST(LayoutTest, AccumulationGivesEachTrainedUnitAGradientSlotAndFrozenOnesOneALevel) {
  v1::Plan plan;
  AddUnit("a", {32}, 4, &plan);
  AddUnit("b", {40}, 4, &plan);
  AddUnit("c", {64}, 4, &plan, v1::BFLOAT16);
  AddUnit("d", {}, 4, &plan);
  AddUnit("", {100}, -1, &plan);
  plan.mutable_units(1)->mutable_parameters(0)->set_requires_grad(false);
  const v1::JobSpec job =
      Job(absl::StrCat(kTight, R"(,"memory":{"accumulate_unsynchronized":true})"));
  for (const char* unshard : {"slots", "resident"}) {
    v1::JobSpec with_mode = job;
    with_mode.mutable_memory()->set_unshard(unshard);
    const v1::Layout layout = Layout(plan, with_mode, 2);
    EXPECT_THAT(SlotShapes(layout.gradient_slots()),
                ElementsAre("0+128@unit 0", "128+128@unit 2", "256+400@unit 4", "768+160@1"));
    EXPECT_EQ(layout.gradient_stride_bytes(), 4096);
  }
}

TEST(LayoutTest, SgdKeepsWhatItNeeds) {
  v1::Plan plan;
  AddUnit("", {32}, -1, &plan);
  v1::JobSpec job = Job();
  job.mutable_optimizer()->set_name("sgd");
  EXPECT_EQ(Layout(plan, job, 1).rank_file().total_bytes(), 4160 + 32 * 8 + 32 * 4);
  job.mutable_optimizer()->set_momentum(0.9);
  EXPECT_EQ(Layout(plan, job, 1).rank_file().total_bytes(), 4160 + 32 * 12 + 32 * 8);
}

TEST(LayoutTest, AGpuStagesTheLargestUnitThatIsCast) {
  v1::Plan plan = NestedPlan();
  EXPECT_EQ(MakeLayout(plan, Job(std::string(kTight) + kCuda), 2)->staging_bytes(), 0);
  plan.mutable_units(1)->set_reduce_dtype(v1::BFLOAT16);  // a.y: 20 elements
  plan.mutable_units(2)->set_reduce_dtype(v1::BFLOAT16);  // a: 30
  plan.mutable_units(3)->set_param_dtype(v1::BFLOAT16);   // b.x: 40, gathered and reduced alike
  plan.mutable_units(3)->set_reduce_dtype(v1::BFLOAT16);
  plan.mutable_units(4)->set_param_dtype(v1::BFLOAT16);  // b.y: 5, padded to 6
  EXPECT_EQ(MakeLayout(plan, Job(std::string(kTight) + kCuda), 2)->staging_bytes(), 60);
  plan.mutable_units(2)->set_reduce_dtype(v1::FLOAT32);
  plan.mutable_units(1)->set_reduce_dtype(v1::FLOAT32);
  EXPECT_EQ(MakeLayout(plan, Job(std::string(kTight) + kCuda), 2)->staging_bytes(), 24);
  // A CPU casts as it reads.
  EXPECT_EQ(MakeLayout(plan, Job(kTight), 2)->staging_bytes(), 0);
}

TEST(LayoutTest, AGpuTakesSlotsAndHasNoPartOfTheGradientFile) {
  const v1::Layout cpu = *MakeLayout(NestedPlan(), Job(), 2);
  for (const char* unshard : {"auto", "slots"}) {
    const v1::Layout gpu = *MakeLayout(NestedPlan(), Job(kCuda, unshard), 2);
    EXPECT_EQ(gpu.device(), v1::CUDA);
    EXPECT_EQ(gpu.unshard_mode(), v1::SLOTS);
    EXPECT_EQ(gpu.gradient_stride_bytes(), 0);
    EXPECT_EQ(gpu.unsharded_slots_size(), cpu.unsharded_slots_size());
    EXPECT_NE(gpu.layout_fingerprint(), cpu.layout_fingerprint());
  }
  EXPECT_EQ(cpu.device(), v1::CPU);
  EXPECT_EQ(Field(MakeLayout(NestedPlan(), Job(kCuda, "resident"), 2).status()), "memory.unshard");
}

TEST(LayoutTest, HeaderSaysWhatItIs) {
  const v1::Layout layout = Layout(NestedPlan(), Job(), 3);
  EXPECT_EQ(layout.plan_fingerprint(), "p");
  EXPECT_EQ(layout.world_size(), 3);
  EXPECT_EQ(layout.shard_count(), 3);
  EXPECT_EQ(layout.replica_count(), 1);
  EXPECT_EQ(layout.sharding_strategy(), v1::FULL_SHARD);
  EXPECT_EQ(layout.unshard_mode(), v1::SLOTS);
  EXPECT_EQ(layout.prefetch(), 1);
  EXPECT_THAT(layout.notes(), IsEmpty());
  EXPECT_EQ(layout.layout_fingerprint(), LayoutFingerprint(layout, layout.units()));
  EXPECT_EQ(Layout(NestedPlan(), Job(), 3).layout_fingerprint(), layout.layout_fingerprint());
  EXPECT_NE(Layout(NestedPlan(), Job(), 2).layout_fingerprint(), layout.layout_fingerprint());
  EXPECT_NE(Layout(NestedPlan(), Job(kTight), 3).layout_fingerprint(), layout.layout_fingerprint());
  EXPECT_EQ(Layout(NestedPlan(), Job(), 1).notes_size(), 1);
}

TEST(LayoutTest, RefusesWhatItCannotLayOut) {
  const v1::JobSpec good = Job();
  v1::JobSpec replicas = good, align = good, resident = Job("", "resident");
  replicas.mutable_mesh()->set_replicas(3);
  align.mutable_wrap()->set_param_align_bytes(-1);
  resident.mutable_mesh()->set_local_world_size(1);
  const std::vector<std::tuple<v1::JobSpec, int, std::string>> cases = {
      {good, 0, "world_size"},         {good, -1, "world_size"},
      {good, 65'537, "world_size"},    {replicas, 2, "mesh.replicas"},
      {resident, 2, "memory.unshard"}, {align, 2, "wrap.param_align_bytes"},
  };
  for (const auto& [job, world_size, field] : cases) {
    const absl::Status status = MakeLayout(NestedPlan(), job, world_size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(Field(status), field);
  }
}

TEST(LayoutTest, RefusesBytesThatOverflow) {
  v1::Plan plan;
  AddUnit("a", {int64_t{1} << 43}, 1, &plan);
  AddUnit("", {}, -1, &plan);
  EXPECT_TRUE(MakeLayout(plan, Job(), 65'536).ok());
  // Each of 2^16 ranks has gradient slots of its own: 2^45 bytes and 2^46 more.
  v1::UnitParameter* parameter = plan.mutable_units(1)->add_parameters();
  parameter->set_numel(int64_t{1} << 44);
  EXPECT_EQ(Field(MakeLayout(plan, Job(), 65'536).status()), "model");
}

}  // namespace
}  // namespace tessera
