#include "coordinator/stats_store.h"

#include <limits>

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using Samples = google::protobuf::RepeatedPtrField<v1::OperationSample>;

Samples One(int unit, v1::Operation operation, double median_us, int64_t count = 1) {
  Samples samples;
  v1::OperationSample* sample = samples.Add();
  sample->set_unit(unit);
  sample->set_operation(operation);
  sample->set_count(count);
  sample->set_median_us(median_us);
  return samples;
}

TEST(StatsStoreTest, SummarisesOverRanks) {
  StatsStore stats(2, 3);
  ASSERT_TRUE(stats.Record(0, One(1, v1::UNSHARD, 4.0, 10)).ok());
  ASSERT_TRUE(stats.Record(1, One(1, v1::UNSHARD, 9.5, 12)).ok());
  ASSERT_TRUE(stats.Record(2, One(1, v1::UNSHARD, 3.0, 11)).ok());
  EXPECT_TRUE(stats.Summarise(0).empty());
  const auto summary = stats.Summarise(1);
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_EQ(summary[0].operation(), v1::UNSHARD);
  EXPECT_EQ(summary[0].min_us(), 3.0);
  EXPECT_EQ(summary[0].median_us(), 4.0);
  EXPECT_EQ(summary[0].max_us(), 9.5);
  EXPECT_EQ(summary[0].slowest_rank(), 1);
  EXPECT_EQ(summary[0].count(), 12);
}

TEST(StatsStoreTest, PercentilesAreTheWorstRanks) {
  StatsStore stats(1, 3);
  const double p90[] = {5, 9, 7};
  const double p99[] = {40, 10, 8};
  for (int rank = 0; rank < 3; ++rank) {
    Samples samples = One(0, v1::WAIT, 4.0);
    samples[0].set_p90_us(p90[rank]);
    samples[0].set_p99_us(p99[rank]);
    ASSERT_TRUE(stats.Record(rank, samples).ok());
  }
  EXPECT_EQ(stats.Summarise(0)[0].p90_us(), 9);
  EXPECT_EQ(stats.Summarise(0)[0].p99_us(), 40);
  // The newest of a rank counts.
  Samples samples = One(0, v1::WAIT, 4.0);
  samples[0].set_p90_us(6);
  samples[0].set_p99_us(6);
  ASSERT_TRUE(stats.Record(0, samples).ok());
  EXPECT_EQ(stats.Summarise(0)[0].p99_us(), 10);
}

TEST(StatsStoreTest, MedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  StatsStore stats(1, 2);
  ASSERT_TRUE(stats.Record(0, One(0, v1::REDUCE, 1.0)).ok());
  ASSERT_TRUE(stats.Record(1, One(0, v1::REDUCE, 4.0)).ok());
  EXPECT_EQ(stats.Summarise(0)[0].median_us(), 2.5);
}

TEST(StatsStoreTest, NewestSampleReplacesTheOlderOne) {
  StatsStore stats(1, 1);
  ASSERT_TRUE(stats.Record(0, One(0, v1::WAIT, 8.0, 1)).ok());
  ASSERT_TRUE(stats.Record(0, One(0, v1::WAIT, 2.0, 2)).ok());
  const auto summary = stats.Summarise(0);
  EXPECT_EQ(summary[0].max_us(), 2.0);
  EXPECT_EQ(summary[0].count(), 2);
}

TEST(StatsStoreTest, RanksThatDidNotReportAreLeftOutAndTiesGoToTheLowestRank) {
  StatsStore stats(1, 4);
  ASSERT_TRUE(stats.Record(1, One(0, v1::WAIT, 5.0)).ok());
  ASSERT_TRUE(stats.Record(3, One(0, v1::WAIT, 5.0)).ok());
  const auto summary = stats.Summarise(0);
  EXPECT_EQ(summary[0].min_us(), 5.0);
  EXPECT_EQ(summary[0].slowest_rank(), 1);
}

TEST(StatsStoreTest, OperationsComeInTheirOwnOrder) {
  StatsStore stats(1, 1);
  ASSERT_TRUE(stats.Record(0, One(0, v1::REDUCE_WAIT, 1.0)).ok());
  ASSERT_TRUE(stats.Record(0, One(0, v1::UNSHARD, 1.0)).ok());
  const auto summary = stats.Summarise(0);
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0].operation(), v1::UNSHARD);
  EXPECT_EQ(summary[1].operation(), v1::REDUCE_WAIT);
}

TEST(StatsStoreTest, RefusesWhatMakesNoSenseAndThenTakesNothing) {
  StatsStore stats(2, 2);
  EXPECT_EQ(Field(stats.Record(2, One(0, v1::WAIT, 1.0))), "rank");
  EXPECT_EQ(Field(stats.Record(-1, One(0, v1::WAIT, 1.0))), "rank");
  EXPECT_EQ(Field(stats.Record(0, One(2, v1::WAIT, 1.0))), "samples.unit");
  EXPECT_EQ(Field(stats.Record(0, One(-1, v1::WAIT, 1.0))), "samples.unit");
  EXPECT_EQ(Field(stats.Record(0, One(0, v1::OPERATION_UNSPECIFIED, 1.0))), "samples.operation");
  EXPECT_EQ(Field(stats.Record(0, One(0, static_cast<v1::Operation>(99), 1.0))),
            "samples.operation");
  EXPECT_EQ(Field(stats.Record(0, One(0, v1::WAIT, -1.0))), "samples");
  EXPECT_EQ(Field(stats.Record(0, One(0, v1::WAIT, std::numeric_limits<double>::quiet_NaN()))),
            "samples");
  for (const auto set : {&v1::OperationSample::set_p90_us, &v1::OperationSample::set_p99_us}) {
    Samples wrong = One(0, v1::WAIT, 1.0);
    (wrong[0].*set)(-1);
    EXPECT_EQ(Field(stats.Record(0, wrong)), "samples");
  }
  Samples half_wrong = One(0, v1::WAIT, 1.0);
  *half_wrong.Add() = One(7, v1::WAIT, 1.0)[0];
  EXPECT_FALSE(stats.Record(0, half_wrong).ok());
  EXPECT_TRUE(stats.Summarise(0).empty());
}

}  // namespace
}  // namespace tessera
