#include "coordinator/step_rate.h"

#include "common/simulated_clock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class StepRateTest : public ::testing::Test {
 protected:
  void After(absl::Duration duration, int64_t steps) {
    clock_.Advance(duration);
    rate_.Add(steps, clock_.Now());
  }

  SimulatedClock clock_;
  StepRate rate_{/*window=*/absl::Seconds(60)};
};

TEST_F(StepRateTest, KnowsNothingBeforeTwoTimes) {
  EXPECT_FALSE(rate_.TimeLeft(100).has_value());
  After(absl::ZeroDuration(), 0);
  EXPECT_FALSE(rate_.TimeLeft(100).has_value());
  After(absl::ZeroDuration(), 20);
  EXPECT_FALSE(rate_.TimeLeft(100).has_value());
}

TEST_F(StepRateTest, TheRestTakesWhatItsStepsTookSoFar) {
  After(absl::ZeroDuration(), 0);
  After(absl::Seconds(5), 20);
  EXPECT_EQ(rate_.TimeLeft(600), absl::Seconds(145));  // 580 steps, 4 a second
  After(absl::Seconds(15), 40);                        // 40 in 20 seconds: 2 a second
  EXPECT_EQ(rate_.TimeLeft(600), absl::Seconds(280));
}

TEST_F(StepRateTest, NothingIsLeftAtTheEnd) {
  After(absl::ZeroDuration(), 0);
  After(absl::Seconds(5), 100);
  EXPECT_FALSE(rate_.TimeLeft(100).has_value());
}

TEST_F(StepRateTest, AReportThatIsNoNewsChangesNothing) {
  After(absl::ZeroDuration(), 0);
  After(absl::Seconds(5), 20);
  After(absl::Seconds(100), 20);  // another rank's, or a stall
  After(absl::ZeroDuration(), 7);
  EXPECT_EQ(rate_.TimeLeft(40), absl::Seconds(5));
}

TEST_F(StepRateTest, ForgetsThePaceBeforeTheWindow) {
  After(absl::ZeroDuration(), 0);
  for (int i = 1; i <= 10; ++i) After(absl::Seconds(60), i);  // a step a minute
  EXPECT_EQ(rate_.TimeLeft(15), absl::Minutes(5));
  for (int i = 1; i <= 60; ++i) After(absl::Seconds(1), 10 + i);  // then one a second
  EXPECT_EQ(rate_.TimeLeft(170), absl::Seconds(100));
}

TEST_F(StepRateTest, ManySmallStepsAreAveragedAsWell) {
  After(absl::ZeroDuration(), 0);
  for (int i = 1; i <= 100'000; ++i) After(absl::Milliseconds(10), i);
  EXPECT_NEAR(absl::ToDoubleSeconds(*rate_.TimeLeft(200'000)), 1000, 1e-6);
}

}  // namespace
}  // namespace tessera
