#include "client/step_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "coordinator/job_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Units a (10 bytes), b (20, around a), c (40) and the root (100), of one byte an element.
v1::Plan SmallPlan() {
  v1::Plan plan;
  for (const auto& [fqn, enclosing] :
       {std::pair("b.a", 1), std::pair("b", 3), std::pair("c", 3), std::pair("", -1)}) {
    v1::Unit* unit = plan.add_units();
    unit->set_fqn(fqn);
    unit->set_param_dtype(v1::INT8);
    if (enclosing >= 0) unit->set_enclosing_unit(enclosing);
    unit->add_parameters()->set_requires_grad(true);
  }
  return plan;
}

v1::Layout SmallLayout(v1::ShardingStrategy strategy, int prefetch = 0) {
  v1::Layout layout;
  layout.set_sharding_strategy(strategy);
  layout.set_unshard_mode(v1::SLOTS);
  layout.set_prefetch(prefetch);
  for (const int bytes : {10, 20, 40, 100}) layout.add_units()->set_padded_numel(bytes);
  layout.add_unsharded_slots()->set_bytes(1000);
  layout.add_gradient_slots()->set_bytes(1000);
  return layout;
}

// "F0 130+0": phase, unit, whole units, gradients.
std::vector<std::string> Points(const StepMemory& memory) {
  std::vector<std::string> texts;
  for (const StepMemory::Point& point : memory.points) {
    const bool optimizer = point.phase == StepMemory::Phase::kOptimizer;
    const bool forward = point.phase == StepMemory::Phase::kForward;
    texts.push_back(absl::StrCat(optimizer ? "O" : absl::StrCat(forward ? "F" : "B", point.unit),
                                 " ", point.unsharded_bytes, "+", point.gradient_bytes));
  }
  return texts;
}

std::vector<std::string> Points(const v1::Layout& layout) {
  return Points(MakeStepMemory(SmallPlan(), layout, {}, 100));
}

TEST(StepMemoryTest, FullShardKeepsAUnitAndThoseAroundIt) {
  // Gradients: the unit's, those of units around it, and those of the unit before, being reduced.
  EXPECT_THAT(Points(SmallLayout(v1::FULL_SHARD)),
              ElementsAre("F0 130+0", "F1 120+0", "F2 140+0", "F3 100+0",          //
                          "B3 100+100", "B2 140+140", "B1 120+160", "B0 130+130",  //
                          "O 0+0"));
}

TEST(StepMemoryTest, PrefetchGathersAhead) {
  EXPECT_THAT(Points(SmallLayout(v1::FULL_SHARD, /*prefetch=*/1)),
              ElementsAre("F0 130+0", "F1 160+0", "F2 140+0", "F3 100+0",          //
                          "B3 140+100", "B2 160+140", "B1 130+160", "B0 130+130",  //
                          "O 0+0"));
  // More than there are units.
  EXPECT_EQ(Points(SmallLayout(v1::FULL_SHARD, 1'000'000'000))[0], "F0 170+0");
}

TEST(StepMemoryTest, ShardGradOpKeepsUnitsForTheirBackward) {
  EXPECT_THAT(Points(SmallLayout(v1::SHARD_GRAD_OP)),
              ElementsAre("F0 130+0", "F1 130+0", "F2 170+0", "F3 170+0",          //
                          "B3 170+100", "B2 170+140", "B1 130+160", "B0 130+130",  //
                          "O 0+0"));
  EXPECT_THAT(Points(SmallLayout(v1::HYBRID_SHARD_ZERO2, 1))[5], "B2 170+140");
}

TEST(StepMemoryTest, AUnitMayHaveAStrategyOfItsOwn) {
  v1::Plan plan = SmallPlan();
  plan.mutable_units(2)->mutable_overrides()->set_strategy("shard_grad_op");
  const StepMemory memory = MakeStepMemory(plan, SmallLayout(v1::FULL_SHARD), {}, 100);
  EXPECT_EQ(Points(memory)[3], "F3 140+0");
  EXPECT_EQ(Points(memory)[4], "B3 140+100");
}

TEST(StepMemoryTest, ResidentUnitsAreWholeAlways) {
  v1::Layout layout = SmallLayout(v1::FULL_SHARD);
  layout.set_unshard_mode(v1::RESIDENT);
  EXPECT_THAT(Points(layout),
              ElementsAre("F0 170+0", "F1 170+0", "F2 170+0", "F3 170+0",          //
                          "B3 170+100", "B2 170+140", "B1 170+160", "B0 170+130",  //
                          "O 170+0"));
  EXPECT_EQ(Points(SmallLayout(v1::NO_SHARD))[0], "F0 170+0");
}

TEST(StepMemoryTest, AccumulatedGradientsStay) {
  v1::Layout layout = SmallLayout(v1::FULL_SHARD);
  layout.mutable_gradient_slots(0)->set_unit(0);
  EXPECT_EQ(Points(layout)[0], "F0 130+170");
  EXPECT_EQ(Points(layout)[7], "B0 130+170");
}

TEST(StepMemoryTest, WhatNothingTrainsHasNoGradients) {
  v1::Plan plan = SmallPlan();
  plan.mutable_units(3)->mutable_parameters(0)->set_requires_grad(false);
  const StepMemory memory = MakeStepMemory(plan, SmallLayout(v1::FULL_SHARD), {}, 100);
  EXPECT_EQ(Points(memory)[4], "B3 100+0");
  EXPECT_EQ(Points(memory)[7], "B0 130+30");
}

TEST(StepMemoryTest, TakesTheFullestRank) {
  v1::Forecast forecast;
  forecast.add_ranks()->set_private_total_bytes(1);
  v1::RankForecast* rank = forecast.add_ranks();
  rank->set_parameter_bytes(100);
  rank->set_gradient_bytes(200);
  rank->set_optimizer_bytes(300);
  rank->set_private_total_bytes(664);
  const StepMemory memory = MakeStepMemory(SmallPlan(), SmallLayout(v1::FULL_SHARD), forecast, 100);
  EXPECT_EQ(memory.parameter_bytes, 100);
  EXPECT_EQ(memory.reduced_gradient_bytes, 200);
  EXPECT_EQ(memory.optimizer_bytes, 300);
  EXPECT_EQ(memory.other_bytes, 64);
  EXPECT_EQ(memory.fixed_bytes(), 664);
  EXPECT_EQ(memory.planned_bytes(), 2664);
}

TEST(StepMemoryTest, ThinsManyPointsAndKeepsThePeaks) {
  v1::Plan plan;
  v1::Layout layout;
  layout.add_unsharded_slots()->set_bytes(1 << 20);
  for (int i = 0; i < 10'000; ++i) {
    v1::Unit* unit = plan.add_units();
    unit->set_param_dtype(v1::INT8);
    unit->set_enclosing_unit(10'000);
    layout.add_units()->set_padded_numel(i == 5'000 ? 77 : 1);
  }
  plan.add_units()->set_param_dtype(v1::INT8);
  layout.add_units();
  const StepMemory memory = MakeStepMemory(plan, layout, {}, 100);
  ASSERT_THAT(memory.points, SizeIs(100));
  int peaks = 0;
  for (const StepMemory::Point& point : memory.points) peaks += point.unsharded_bytes == 77;
  EXPECT_EQ(peaks, 2);  // its forward and its backward
}

// What the planner places is never less than what a step holds.
TEST(StepMemoryTest, FitsTheSlotsOfRealPlans) {
  for (const char* unshard : {"slots", "resident"}) {
    for (const int prefetch : {0, 1, 2}) {
      v1::JobSpec spec;
      spec.set_name("plan");
      spec.mutable_memory()->set_unshard(unshard);
      spec.mutable_memory()->set_prefetch(prefetch);
      const auto planned = PlanJob(ResolveJobSpec(spec).value(), 2);
      ASSERT_TRUE(planned.ok()) << planned.status();
      v1::Layout roomy = planned->layout;
      roomy.add_unsharded_slots()->set_bytes(int64_t{1} << 40);
      roomy.add_gradient_slots()->set_bytes(int64_t{1} << 40);
      const StepMemory fits = MakeStepMemory(planned->plan, planned->layout, planned->forecast, 99);
      const StepMemory free = MakeStepMemory(planned->plan, roomy, planned->forecast, 99);
      EXPECT_EQ(Points(fits), Points(free)) << unshard << " " << prefetch;
      EXPECT_EQ(fits.fixed_bytes(), planned->forecast.ranks(0).private_total_bytes());
    }
  }
}

}  // namespace
}  // namespace tessera
