#include "client/tables.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/text_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

size_t WidestLine(const std::string& text) {
  size_t widest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    widest = std::max(widest, line.size());
  }
  return widest;
}

std::vector<std::pair<int, int>> Runs(const std::vector<std::string>& fqns,
                                      const std::vector<std::string>& kinds) {
  std::vector<std::pair<int, int>> pairs;
  for (const UnitRun& run : FoldUnits(fqns, kinds)) pairs.emplace_back(run.begin, run.end);
  return pairs;
}

TEST(TextTableTest, AlignsAndSeparatesColumns) {
  TextTable table({{"UNIT", Align::kLeft}, {"BYTES", Align::kRight}});
  table.AddRow({"h.0", "1,024"});
  table.AddRow({"lm_head", "8"});
  EXPECT_EQ(table.ToString(),
            "UNIT     BYTES\n"
            "h.0      1,024\n"
            "lm_head      8\n");
}

TEST(TextTableTest, GivesALongNameALineOfItsOwn) {
  TextTable table({{"UNIT", Align::kLeft}, {"BYTES", Align::kRight}});
  const std::string name(90, 'x');
  table.AddRow({name, "1,024"});
  table.AddRow({"h.0", "8"});
  EXPECT_EQ(table.ToString(), absl::StrCat("UNIT  BYTES\n", name,
                                           "\n"
                                           "      1,024\n"
                                           "h.0       8\n"));
}

TEST(TextTableTest, KeepsAShortNameInItsRowHoweverWide) {
  TextTable table({{"RANK", Align::kLeft}, {"BYTES", Align::kRight}});
  const std::string wide(90, '9');
  table.AddRow({"0 .. 1", wide});
  EXPECT_EQ(table.ToString(),
            absl::StrCat("RANK    ", std::string(85, ' '), "BYTES\n0 .. 1  ", wide, "\n"));
}

TEST(TextTableTest, GroupsThousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(1234567), "1,234,567");
  EXPECT_EQ(WithThousands(-100), "-100");
  EXPECT_EQ(WithThousands(-4096), "-4,096");
}

TEST(FoldUnitsTest, FoldsNumberedSiblingsOfOneKind) {
  EXPECT_THAT(Runs({"h.0", "h.1", "h.2", ""}, {"a", "a", "a", "b"}),
              ElementsAre(std::pair(0, 3), std::pair(3, 4)));
}

TEST(FoldUnitsTest, KeepsWhatDiffersApart) {
  // Another kind, a gap in the numbers, another name, another depth.
  EXPECT_THAT(Runs({"h.0", "h.1"}, {"a", "b"}), ElementsAre(std::pair(0, 1), std::pair(1, 2)));
  EXPECT_THAT(Runs({"h.0", "h.2"}, {"a", "a"}), ElementsAre(std::pair(0, 1), std::pair(1, 2)));
  EXPECT_THAT(Runs({"h.0", "g.1"}, {"a", "a"}), ElementsAre(std::pair(0, 1), std::pair(1, 2)));
  EXPECT_THAT(Runs({"h.0", "h.1.x"}, {"a", "a"}), ElementsAre(std::pair(0, 1), std::pair(1, 2)));
}

TEST(FoldUnitsTest, CountsInOneSegmentOnly) {
  // 0.0, 0.1 count in the second segment; 1.1 would go on in the first.
  EXPECT_THAT(Runs({"0.0", "0.1", "1.1"}, {"a", "a", "a"}),
              ElementsAre(std::pair(0, 2), std::pair(2, 3)));
}

TEST(FoldUnitsTest, NamesRuns) {
  const std::vector<std::string> fqns = {"h.0", "h.1", ""};
  EXPECT_EQ(RunName(fqns, {0, 2}), "h.0 .. h.1 (2)");
  EXPECT_EQ(RunName(fqns, {0, 1}), "h.0");
  EXPECT_EQ(RunName(fqns, {2, 3}), "(root)");
}

// Two equal blocks of 124 elements and an empty root, in bf16 on two ranks.
v1::Plan SmallPlan() {
  v1::Plan plan;
  plan.set_plan_fingerprint("0123456789abcdef");
  plan.set_model_name("two-layer");
  for (const char* fqn : {"h.0", "h.1"}) {
    v1::Unit* unit = plan.add_units();
    unit->set_fqn(fqn);
    unit->set_class_name("Block");
    unit->set_numel(124);
    unit->set_original_dtype(v1::FLOAT32);
    unit->set_param_dtype(v1::BFLOAT16);
    unit->set_reduce_dtype(v1::FLOAT32);
  }
  v1::Unit* root = plan.add_units();
  root->set_class_name("Sequential");
  root->set_original_dtype(v1::FLOAT32);
  root->set_param_dtype(v1::FLOAT32);
  root->set_reduce_dtype(v1::FLOAT32);
  plan.add_notes("the root has no parameters of its own");
  return plan;
}

v1::Layout SmallLayout() {
  v1::Layout layout;
  layout.set_layout_fingerprint("fedcba9876543210");
  layout.set_world_size(2);
  layout.set_sharding_strategy(v1::FULL_SHARD);
  layout.set_unshard_mode(v1::SLOTS);
  for (int i = 0; i < 2; ++i) {
    v1::UnitLayout* unit = layout.add_units();
    unit->set_padded_numel(128);
    unit->set_shard_numel(64);
  }
  layout.add_units();
  return layout;
}

TEST(PlanTableTest, FoldsEqualUnitsAndRanks) {
  v1::Forecast forecast;
  for (int i = 0; i < 2; ++i) {
    v1::RankForecast* rank = forecast.add_ranks();
    rank->set_rank(i);
    rank->set_parameter_bytes(512);
    rank->set_gradient_bytes(512);
    rank->set_optimizer_bytes(1024);
    rank->set_undo_bytes(768);
    rank->set_private_total_bytes(6976);
    rank->set_mapped_bytes(8192);
  }
  v1::HostForecast* host = forecast.add_hosts();
  host->set_unsharded_bytes(512);
  host->set_unsharded_gradient_bytes(1024);
  host->set_control_bytes(12288);
  host->set_shared_total_bytes(13824);
  host->set_mapped_bytes(20480);
  forecast.set_activation_certainty(v1::Forecast::UNKNOWN);
  forecast.set_wire_bytes_per_step(1536);
  EXPECT_EQ(PlanTable(SmallPlan(), SmallLayout(), forecast),
            "model two-layer, 3 units, world size 2, full_shard, unshard slots\n"
            "plan 0123456789ab, layout fedcba987654\n"
            "\n"
            "Elements of each unit, and bytes of a shard and of the whole\n"
            "UNIT            CLASS       NUMEL  PARAM     REDUCE   SHARDED  UNSHARDED\n"
            "h.0 .. h.1 (2)  Block         124  bfloat16  float32      256        256\n"
            "(root)          Sequential      0  float32   float32        0          0\n"
            "\n"
            "Bytes of a rank's own memory\n"
            "RANK    PARAMETERS  GRADIENTS  OPTIMIZER  UNDO  TOTAL  MAPPED\n"
            "0 .. 1         512        512      1,024   768  6,976   8,192\n"
            "\n"
            "Bytes that the ranks of a host share\n"
            "HOST  UNSHARDED  GRADIENTS  STAGING  CONTROL   TOTAL  MAPPED\n"
            "0           512      1,024        0   12,288  13,824  20,480\n"
            "\n"
            "activations  unknown\n"
            "on a wire    1,536 bytes a rank and step\n"
            "note: the root has no parameters of its own\n");
}

TEST(PlanTableTest, ShowsTheBuffersOfEachGpu) {
  v1::Forecast forecast;
  v1::GpuForecast* gpu = forecast.add_ranks()->mutable_gpu();
  gpu->set_unsharded_bytes(1024);
  gpu->set_unsharded_gradient_bytes(2048);
  gpu->set_staging_bytes(512);
  gpu->set_total_bytes(3584);
  gpu->set_allocated_bytes(12288);
  EXPECT_THAT(PlanTable(SmallPlan(), SmallLayout(), forecast),
              HasSubstr("\nBytes on each rank's GPU\n"
                        "UNSHARDED  GRADIENTS  STAGING  TOTAL  ALLOCATED\n"
                        "    1,024      2,048      512  3,584     12,288\n"
                        "\nBytes that the ranks of a host share\n"));
}

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
            "UNIT            PARAM    REDUCE   SHARDED BYTES  UNSHARDED BYTES\n"
            "h.0 .. h.1 (2)  float32  float32        396,544          793,088\n"
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
  EXPECT_THAT(UnitStatsTable(stats), HasSubstr("h.0 .. h.12 (13)  unshard      10.0       26.0    "
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
  job.set_state(v1::FAILED);
  job.set_reason("rank 0 was killed by signal 9");
  job.set_failed_rank(0);
  job.mutable_end_time()->set_seconds(1700000000);
  EXPECT_THAT(JobText(job), HasSubstr("failed rank 0\n"));
  EXPECT_THAT(JobText(job), HasSubstr("reason      rank 0 was killed by signal 9\n"));
  EXPECT_THAT(JobText(job), HasSubstr("ended       2023-11-14T22:13:20Z\n"));
  EXPECT_THAT(JobText(job), Not(HasSubstr("created")));
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
