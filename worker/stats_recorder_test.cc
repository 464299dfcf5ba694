#include "worker/stats_recorder.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(StatsRecorderTest, MedianIsOfTheLast256AndCountOfAll) {
  StatsRecorder recorder(2);
  for (int i = 0; i < 1000; ++i) recorder.Record(1, v1::REDUCE, i, 64);
  const auto samples = recorder.TakeChanged();
  ASSERT_EQ(samples.size(), 1);
  EXPECT_EQ(samples[0].unit(), 1);
  EXPECT_EQ(samples[0].operation(), v1::REDUCE);
  EXPECT_EQ(samples[0].count(), 1000);
  EXPECT_EQ(samples[0].bytes(), 64);
  EXPECT_EQ(samples[0].median_us(), 872);       // of 744..999
  EXPECT_EQ(samples[0].total_us(), 999 * 500);  // sum of 0..999
}

TEST(StatsRecorderTest, OnlyWhatHasChangedIsTaken) {
  StatsRecorder recorder(1);
  recorder.Record(0, v1::UNSHARD, 1, 1);
  EXPECT_EQ(recorder.TakeChanged().size(), 1);
  EXPECT_TRUE(recorder.TakeChanged().empty());
  recorder.Record(0, v1::WAIT, 1, 1);
  EXPECT_EQ(recorder.TakeChanged().size(), 1);
}

}  // namespace
}  // namespace tessera
