#include "worker/loss_scale.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(LossScaleTest, NoneAndANumberStayAsTheyAre) {
  LossScale none("none"), number("1024");
  for (const bool non_finite : {false, true, false}) {
    none.Update(non_finite);
    number.Update(non_finite);
  }
  EXPECT_EQ(none.factor(), 1);
  EXPECT_EQ(number.factor(), 1024);
}

// torch.amp.GradScaler's defaults.
TEST(LossScaleTest, DynamicDoublesAfter2000GoodStepsAndHalvesAfterABadOne) {
  LossScale scale("dynamic");
  EXPECT_EQ(scale.factor(), 65536);
  for (int step = 1; step <= 1999; ++step) scale.Update(false);
  EXPECT_EQ(scale.factor(), 65536);
  scale.Update(false);
  EXPECT_EQ(scale.factor(), 131072);
  scale.Update(true);
  scale.Update(true);
  EXPECT_EQ(scale.factor(), 32768);
}

TEST(LossScaleTest, ABadStepBeginsTheCountAnew) {
  LossScale scale("dynamic");
  for (int step = 1; step <= 1999; ++step) scale.Update(false);
  scale.Update(true);
  for (int step = 1; step <= 1999; ++step) scale.Update(false);
  EXPECT_EQ(scale.factor(), 32768);
  EXPECT_EQ(scale.age(), 1999);
  scale.Update(false);
  EXPECT_EQ(scale.factor(), 65536);
}

TEST(LossScaleTest, NeverGrowsToInfinity) {
  LossScale scale("dynamic");
  scale.Restore(0x1p127, 1999);
  scale.Update(false);
  EXPECT_EQ(scale.factor(), 0x1p127);
  EXPECT_EQ(scale.age(), 0);
}

TEST(LossScaleTest, GoesOnFromWhereAnotherWas) {
  LossScale first("dynamic"), second("dynamic");
  for (int step = 1; step <= 700; ++step) first.Update(step == 30);
  second.Restore(first.factor(), first.age());
  for (int step = 701; step <= 2030; ++step) second.Update(false);
  EXPECT_EQ(second.factor(), 65536);  // 2,000 good steps since step 30
}

}  // namespace
}  // namespace tessera
