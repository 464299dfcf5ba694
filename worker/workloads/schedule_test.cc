#include "worker/workloads/schedule.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

v1::OptimizerSpec Spec(const char* schedule) {
  v1::OptimizerSpec spec;
  spec.set_lr(0.001);
  spec.set_warmup_steps(50);
  spec.set_schedule(schedule);
  spec.set_final_lr_fraction(0.1);
  return spec;
}

TEST(ScheduleTest, WarmsUpLinearly) {
  for (const char* schedule : {"constant", "cosine"}) {
    EXPECT_DOUBLE_EQ(LearningRate(Spec(schedule), 1, 600), 0.00002);
    EXPECT_DOUBLE_EQ(LearningRate(Spec(schedule), 25, 600), 0.0005);
    EXPECT_DOUBLE_EQ(LearningRate(Spec(schedule), 50, 600), 0.001);
  }
}

TEST(ScheduleTest, ConstantStaysAtPeak) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec("constant"), 51, 600), 0.001);
  EXPECT_DOUBLE_EQ(LearningRate(Spec("constant"), 600, 600), 0.001);
}

// Halfway from 50 to 600 is 325: (1 + 0.1) / 2. A third of the way, cos is 1/2: 0.1 + 0.9 x 0.75.
TEST(ScheduleTest, CosineFallsToFinalFractionAtLastStep) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec("cosine"), 325, 600), 0.00055);
  EXPECT_NEAR(LearningRate(Spec("cosine"), 250, 650), 0.000775, 1e-15);
  EXPECT_DOUBLE_EQ(LearningRate(Spec("cosine"), 600, 600), 0.0001);
}

TEST(ScheduleTest, NoWarmupStartsBelowPeakByOneStepOfDecay) {
  v1::OptimizerSpec spec = Spec("cosine");
  spec.set_warmup_steps(0);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 1, 2), 0.00055);
  EXPECT_DOUBLE_EQ(LearningRate(spec, 2, 2), 0.0001);
}

TEST(ScheduleTest, JobShorterThanItsWarmupNeverDecays) {
  EXPECT_DOUBLE_EQ(LearningRate(Spec("cosine"), 10, 10), 0.0002);
  EXPECT_DOUBLE_EQ(LearningRate(Spec("cosine"), 50, 50), 0.001);
}

}  // namespace
}  // namespace tessera
