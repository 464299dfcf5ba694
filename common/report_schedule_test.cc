#include "common/report_schedule.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(ReportScheduleTest, SmallJobsReportTwiceASecond) {
  EXPECT_EQ(ReportSchedule::Period(4, 6), absl::Milliseconds(500));
  ReportSchedule reports(4, 6, /*rank=*/3);
  EXPECT_TRUE(reports.Begin(kStart, false));
  EXPECT_TRUE(reports.with_samples());
  EXPECT_FALSE(reports.Begin(kStart + absl::Milliseconds(499), false));
  EXPECT_TRUE(reports.Begin(kStart + absl::Milliseconds(499), true));
  EXPECT_TRUE(reports.with_samples());
  EXPECT_FALSE(reports.Begin(kStart + absl::Milliseconds(998), false));
  EXPECT_TRUE(reports.Begin(kStart + absl::Milliseconds(999), false));
  reports.Restart();
  EXPECT_TRUE(reports.Begin(kStart + absl::Milliseconds(999), false));
}

// 10,000 ranks x 127 units x 5 samples, 50,000 of them a second: 127 s.
TEST(ReportScheduleTest, RanksOfALargeJobTakeTurns) {
  EXPECT_EQ(ReportSchedule::Period(10'000, 127), absl::Seconds(127));
  int reports_of_a_minute = 0;
  for (int rank = 0; rank < 10'000; rank += 10) {
    ReportSchedule reports(10'000, 127, rank);
    for (int second = 0; second < 60; ++second) {
      if (!reports.Begin(kStart + absl::Seconds(second), second == 0)) continue;
      if (reports.with_samples() && rank != 0) ++reports_of_a_minute;
    }
  }
  // 59 of every 127 seconds' worth, of 1,000 ranks.
  EXPECT_NEAR(reports_of_a_minute, 59 * 1000.0 / 127, 1);
}

TEST(ReportScheduleTest, TheFirstRankSaysWhereALargeJobIs) {
  ReportSchedule reports(10'000, 127, /*rank=*/0);
  EXPECT_TRUE(reports.Begin(kStart, true));
  EXPECT_TRUE(reports.with_samples());
  EXPECT_TRUE(reports.Begin(kStart + absl::Seconds(1), false));
  EXPECT_FALSE(reports.with_samples());
  EXPECT_FALSE(reports.Begin(kStart + absl::Seconds(1), false));
  EXPECT_TRUE(reports.Begin(kStart + absl::Seconds(127), false));
  EXPECT_TRUE(reports.with_samples());
}

}  // namespace
}  // namespace tessera
