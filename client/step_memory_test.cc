#include "client/step_memory.h"

#include "common/job_spec.h"
#include "coordinator/job_planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::SizeIs;

StepPoint Point(int unit, int64_t unsharded, int64_t gradient = 0) {
  StepPoint point;
  point.phase = v1::PhaseForecast::FORWARD;
  point.unit = unit;
  point.unsharded_bytes = unsharded;
  point.gradient_bytes = gradient;
  return point;
}

TEST(StepMemoryTest, TakesTheFullestRank) {
  v1::Forecast forecast;
  forecast.add_ranks()->set_private_total_bytes(1);
  v1::RankForecast* rank = forecast.add_ranks();
  rank->set_parameter_bytes(100);
  rank->set_gradient_bytes(200);
  rank->set_optimizer_bytes(300);
  rank->set_private_total_bytes(664);
  rank->set_buffer_bytes(1000);
  rank->set_unmanaged_bytes(2000);
  rank->set_unmanaged_gradient_bytes(3000);
  v1::Layout layout;
  layout.add_unsharded_slots()->set_bytes(10);
  layout.add_unsharded_slots()->set_bytes(20);
  layout.add_gradient_slots()->set_bytes(40);
  layout.add_accumulation_slots()->set_bytes(80);
  layout.add_reshard_slots()->set_bytes(160);
  layout.set_staging_bytes(320);
  const StepMemory memory = MakeStepMemory({Point(0, 30, 5)}, layout, forecast, 100);
  EXPECT_EQ(memory.parameter_bytes, 100);
  EXPECT_EQ(memory.reduced_gradient_bytes, 200);
  EXPECT_EQ(memory.optimizer_bytes, 300);
  EXPECT_EQ(memory.other_bytes, 64 + 6000);
  EXPECT_EQ(memory.planned_unsharded_bytes, 30);
  EXPECT_EQ(memory.planned_gradient_bytes, 600);
  EXPECT_EQ(memory.planned_bytes(), 6664 + 630);
  EXPECT_EQ(memory.peak_bytes(), 6664 + 35);
}

TEST(StepMemoryTest, CountsAllThatAPointHas) {
  StepPoint point = Point(0, 1, 2);
  point.staging_bytes = 4;
  point.resharded_bytes = 8;
  point.activation_bytes = 16;
  EXPECT_EQ(GradientBytes(point), 14);
  EXPECT_EQ(LiveBytes(point), 31);
}

TEST(StepMemoryTest, ThinsManyPointsAndKeepsThePeaks) {
  std::vector<StepPoint> timeline;
  for (int i = 0; i < 10'000; ++i) timeline.push_back(Point(i, i == 5'432 ? 77 : 1));
  const StepMemory memory = MakeStepMemory(timeline, {}, {}, 100);
  ASSERT_THAT(memory.points, SizeIs(100));
  EXPECT_EQ(memory.points[54].unit, 5'432);
  EXPECT_EQ(memory.peak_bytes(), 77);
}

// What the planner places is never less than what a step holds.
TEST(StepMemoryTest, FitsTheSlotsOfRealPlans) {
  for (const char* unshard : {"slots", "resident"}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard", "hybrid_shard"}) {
      v1::JobSpec spec;
      spec.set_name("plan");
      spec.mutable_memory()->set_unshard(unshard);
      spec.mutable_mesh()->set_strategy(strategy);
      if (strategy == std::string("hybrid_shard")) spec.mutable_mesh()->set_replicas(2);
      const v1::JobSpec resolved = ResolveJobSpec(spec).value();
      const v1::ModelSpec model = ModelOf(resolved).value();
      const auto planned = PlanJob(resolved, 4);
      ASSERT_TRUE(planned.ok()) << planned.status();
      const StepMemory memory =
          MakeStepMemory(StepTimeline(planned->plan, planned->layout,
                                      ForecastActivations(model, planned->plan, resolved, 4)),
                         planned->layout, planned->forecast, 99);
      for (const StepPoint& point : memory.points) {
        EXPECT_LE(point.unsharded_bytes, memory.planned_unsharded_bytes) << unshard << strategy;
        EXPECT_LE(GradientBytes(point), memory.planned_gradient_bytes) << unshard << strategy;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
