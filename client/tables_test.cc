#include "client/tables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/text_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::OperationStats* AddOperation(v1::UnitStats* unit, v1::Operation operation, double min,
                                 double median, double max, int slowest, double p90 = 0,
                                 double p99 = 0) {
  v1::OperationStats* stats = unit->add_operations();
  stats->set_operation(operation);
  stats->set_min_us(min);
  stats->set_median_us(median);
  stats->set_max_us(max);
  stats->set_slowest_rank(slowest);
  stats->set_p90_us(p90);
  stats->set_p99_us(p99);
  return stats;
}

v1::UnitStats* AddUnit(v1::JobStats* stats, const std::string& fqn) {
  v1::UnitStats* unit = stats->add_units();
  unit->set_fqn(fqn);
  unit->set_param_dtype(v1::FLOAT32);
  unit->set_reduce_dtype(v1::FLOAT32);
  unit->set_sharded_bytes(396544);
  unit->set_unsharded_bytes(793088);
  return unit;
}

TEST(UnitStatsTableTest, ListsEachOperationOfEachUnit) {
  v1::JobStats stats;
  v1::UnitStats* first = AddUnit(&stats, "h.0");
  // In the order of the table, whatever the order of the message.
  AddOperation(first, v1::WAIT, 0, 2.5, 11, 0, 12, 999.94);
  AddOperation(first, v1::UNSHARD, 31.25, 40, 95.5, 1, 96, 1234.5678);
  AddOperation(AddUnit(&stats, "h.1"), v1::REDUCE_WAIT, 1, 2, 3, 1, 4, 5);
  EXPECT_EQ(UnitStatsTable(stats),
            "UNIT      PARAM    REDUCE   SHARDED BYTES  UNSHARDED BYTES\n"
            "h.0-1 x2  float32  float32        396,544          793,088\n"
            "\n"
            "UNIT  OPERATION    MIN us  MEDIAN us  MAX us  P90 us  P99 us  SLOWEST RANK\n"
            "h.0   unshard        31.2       40.0    95.5    96.0    1235             1\n"
            "      wait            0.0        2.5    11.0    12.0   999.9             0\n"
            "h.1   reduce wait     1.0        2.0     3.0     4.0     5.0             1\n");
}

TEST(UnitStatsTableTest, FoldsTheTimesOfManyUnits) {
  v1::JobStats stats;
  for (int i = 0; i < 13; ++i) {
    AddOperation(AddUnit(&stats, absl::StrCat("h.", i)), v1::UNSHARD, 10 + i, 20 + i, 30 + i, i,
                 60 - i, 70 - i);
  }
  // Least of the minima, median of the medians, greatest of the maxima with its rank and of the
  // percentiles.
  EXPECT_THAT(UnitStatsTable(stats), HasSubstr("h.0-12 x13  unshard      10.0       26.0    "
                                               "42.0    60.0    70.0            12\n"));
}

TEST(RankStatsTableTest, ShowsForecastBesideMeasured) {
  v1::JobStats stats;
  for (int i = 0; i < 2; ++i) {
    v1::RankStats* rank = stats.add_ranks();
    rank->set_rank(i);
    rank->set_pid(4242 + i);
    rank->set_forecast_bytes(1000000);
    rank->set_measured_bytes(1000000 + 4096 * i);
  }
  EXPECT_EQ(RankStatsTable(stats),
            "RANK  HOST   PID  FORECAST BYTES  MEASURED BYTES  DIFFERENCE\n"
            "0        0  4242       1,000,000       1,000,000           0\n"
            "1        0  4243       1,000,000       1,004,096       4,096\n");
}

TEST(JobTextTest, LeavesOutWhatIsNotKnown) {
  v1::Job job;
  job.set_name("gpt");
  job.set_state(v1::RUNNING);
  job.set_step(120);
  job.set_steps(600);
  job.set_generation(1);
  job.set_world_size(2);
  EXPECT_EQ(JobText(job),
            "job         gpt\n"
            "state       RUNNING\n"
            "step        120/600\n"
            "generation  1\n"
            "world size  2\n");
  job.set_loss(2.4712);
  EXPECT_THAT(JobText(job), HasSubstr("step        120/600\nloss        2.471\n"));
  job.set_checkpoint_step(80);
  job.set_recoveries(2);
  EXPECT_THAT(JobText(job), HasSubstr("loss        2.471\ncheckpoint  step 80\n"));
  EXPECT_THAT(JobText(job), HasSubstr("world size  2\nrecoveries  2\n"));
  job.set_state(v1::FAILED);
  job.set_reason("rank 0 was killed by signal 9");
  job.set_failed_rank(0);
  job.mutable_end_time()->set_seconds(1700000000);
  EXPECT_THAT(JobText(job), HasSubstr("failed rank 0\n"));
  EXPECT_THAT(JobText(job), HasSubstr("reason      rank 0 was killed by signal 9\n"));
  EXPECT_THAT(JobText(job), HasSubstr("ended       2023-11-14T22:13:20Z\n"));
  EXPECT_THAT(JobText(job), Not(HasSubstr("created")));
}

TEST(WorkersTableTest, AHostThatStandsByHasNoRankAndSaysWhy) {
  std::vector<v1::Worker> workers(2);
  workers[0].set_host_name("node-a");
  workers[0].set_state("READY");
  workers[0].set_position("computes step 7");
  workers[1].set_host_name("node-b");
  workers[1].set_host(-1);
  workers[1].set_rank(-1);
  workers[1].set_state("STANDBY");
  workers[1].set_position("offers 2 workers");
  const std::string table = WorkersTable(workers);
  EXPECT_THAT(table, HasSubstr("node-b        -     -    0  STANDBY"));
  EXPECT_THAT(table, HasSubstr("rank 0 computes step 7\nhost node-b: offers 2 workers\n"));
}

TEST(TablesTest, FitEightyColumnsWithTheFiguresOfALargeModel) {
  v1::JobStats stats;
  for (int i = 0; i < 40; ++i) {
    v1::UnitStats* unit = AddUnit(&stats, absl::StrCat("model.layers.", i));
    unit->set_param_dtype(v1::BFLOAT16);
    unit->set_sharded_bytes(1234567890);
    unit->set_unsharded_bytes(98765432100);
    AddOperation(unit, v1::REDUCE_WAIT, 12345678.9, 12345678.9, 12345678.9, 1023, 1e9, 1e9);
  }
  const std::string table = UnitStatsTable(stats);
  EXPECT_LE(WidestLine(table.substr(0, table.find("OPERATION") - 10)), 80u);
  EXPECT_LE(WidestLine(table), 100u);
  EXPECT_THAT(table, HasSubstr("P99"));
}

TEST(UnitStatsTableTest, LeavesOutPercentilesThatDoNotFit) {
  v1::JobStats stats;
  AddOperation(AddUnit(&stats, "h.0"), v1::REDUCE_WAIT, 1, 1, 1, 0, 1e20, 1e20);
  EXPECT_THAT(UnitStatsTable(stats), Not(HasSubstr("P90")));
  EXPECT_THAT(UnitStatsTable(stats), HasSubstr("h.0   reduce wait     1.0        1.0     1.0"));
}

}  // namespace
}  // namespace tessera
