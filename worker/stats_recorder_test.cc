#include "worker/stats_recorder.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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

// Nearest rank, worked out by counting: the least value with at least so many of 100 not above it.
double CountedPercentile(const std::vector<double>& values, int percent) {
  double least = *std::max_element(values.begin(), values.end());
  for (const double value : values) {
    const auto not_above =
        std::count_if(values.begin(), values.end(), [&](double other) { return other <= value; });
    if (100 * not_above >= percent * static_cast<int64_t>(values.size())) {
      least = std::min(least, value);
    }
  }
  return least;
}

TEST(StatsRecorderTest, PercentilesAreOfTheLast256) {
  StatsRecorder recorder(1);
  std::vector<double> values;
  uint32_t state = 1;
  for (int i = 1; i <= 700; ++i) {
    state = state * 1664525 + 1013904223;
    values.push_back(state >> 20);  // 0 to 4095, some of them twice
    recorder.Record(0, v1::WAIT, values.back(), 1);
    const auto samples = recorder.TakeChanged();
    ASSERT_EQ(samples.size(), 1u);
    const std::vector<double> window(values.end() - std::min(i, 256), values.end());
    EXPECT_EQ(samples[0].p90_us(), CountedPercentile(window, 90)) << i;
    EXPECT_EQ(samples[0].p99_us(), CountedPercentile(window, 99)) << i;
    EXPECT_LE(samples[0].median_us(), samples[0].p90_us());
  }
}

TEST(StatsRecorderTest, PercentilesOfAKnownWindow) {
  StatsRecorder recorder(1);
  for (int i = 256; i > 0; --i) recorder.Record(0, v1::REDUCE, i, 1);
  const auto sample = recorder.TakeChanged()[0];
  EXPECT_EQ(sample.p90_us(), 231);  // 230.4 of 256 are not above it
  EXPECT_EQ(sample.p99_us(), 254);  // 253.44
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
