#include "worker/bench/collective_bench.h"

#include <set>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// Each run compares what the operations made with what the bare loops made; an odd number of bytes
// is rounded up to whole shards.
TEST(CollectiveBenchTest, RunsEveryOperationAtEveryWorldSize) {
  for (const int world_size : {1, 2, 3}) {
    CollectiveBenchOptions options;
    options.world_size = world_size;
    options.unit_bytes = {1, 100'001};
    options.runs = 2;
    const absl::StatusOr<std::vector<BenchResult>> results = RunCollectiveBench(options);
    ASSERT_TRUE(results.ok()) << results.status();
    // A barrier, and for each size 4 operations in 2 dtypes and the optimizer.
    ASSERT_EQ(results->size(), 1u + 2 * 9);
    std::set<int64_t> bytes;
    for (const BenchResult& result : *results) {
      bytes.insert(result.bytes);
      EXPECT_GT(result.median_seconds, 0) << result.op;
      EXPECT_GE(result.p99_seconds, result.median_seconds) << result.op;
      EXPECT_GT(result.bare_loop_median_seconds, 0) << result.op;
      EXPECT_EQ(result.op == "barrier", result.bytes == 0);
      EXPECT_EQ(result.op == "unshard", !result.mode.empty());
    }
    // 64 floats a shard at least: 256 bytes x ranks, and the next multiple of it above 100,001.
    const int64_t multiple = 256 * world_size;
    EXPECT_EQ(bytes, (std::set<int64_t>{0, multiple, (100'001 / multiple + 1) * multiple}));
  }
}

TEST(PercentileTest, IsTheSmallestThatTheFractionDoesNotExceed) {
  const std::vector<double> sorted = {1, 2, 3, 4};
  EXPECT_EQ(Percentile(sorted, 0.5), 2);
  EXPECT_EQ(Percentile(sorted, 0.51), 3);
  EXPECT_EQ(Percentile(sorted, 0.99), 4);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
}

}  // namespace
}  // namespace tessera
