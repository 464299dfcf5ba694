#include "client/bench_control.h"

#include "common/errors.h"
#include "coordinator/job_planner.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(BenchControlTest, HostsHaveEightWorkersOrTheLargestNumberThatDivides) {
  EXPECT_EQ(BenchLocalWorkers(1000), 8);
  EXPECT_EQ(BenchLocalWorkers(100), 5);
  EXPECT_EQ(BenchLocalWorkers(50), 5);
  EXPECT_EQ(BenchLocalWorkers(11), 1);
  EXPECT_EQ(BenchLocalWorkers(7), 7);
  EXPECT_EQ(BenchLocalWorkers(1), 1);
}

TEST(BenchControlTest, TheJobHasTheUnitsOf405BAndCanRun) {
  for (const int workers : {1, 8, 50}) {
    const absl::StatusOr<v1::JobSpec> spec = ControlBenchJob(workers);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const absl::StatusOr<JobPlan> planned = PlanJob(*spec, workers);
    ASSERT_TRUE(planned.ok()) << planned.status();
    // 126 layers and the root.
    EXPECT_EQ(planned->plan.units_size(), 127);
    int64_t numel = 0;
    for (const v1::Unit& unit : planned->plan.units()) numel += unit.numel();
    EXPECT_EQ(numel, 405'853'388'800);
    EXPECT_TRUE(CheckRunnable(*spec, *planned).ok()) << CheckRunnable(*spec, *planned);
    EXPECT_EQ(ChooseWorldSize(*spec, workers), workers);
  }
}

TEST(BenchControlTest, PercentilesAreOfTheNearestRank) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(Percentile(values, 0.99), 198);
  EXPECT_EQ(Percentile(values, 0.5), 100);
  EXPECT_EQ(Percentile({3}, 0.99), 3);
}

TEST(BenchControlTest, RefusesWhatItCannotMeasure) {
  const auto refused = [](auto change) {
    ControlBenchOptions options;
    change(options);
    return Field(BenchControl(options).status());
  };
  EXPECT_EQ(refused([](auto& options) { options.workers = 0; }), "--workers");
  EXPECT_EQ(refused([](auto& options) { options.workers = 100'000; }), "--workers");
  EXPECT_EQ(refused([](auto& options) { options.connections = 0; }), "--connections");
  EXPECT_EQ(refused([](auto& options) { options.steady = absl::ZeroDuration(); }), "--seconds");
  EXPECT_EQ(refused([](auto& options) { options.plan_calls = 0; }), "--plan_calls");
}

}  // namespace
}  // namespace tessera
