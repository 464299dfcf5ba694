// Each rank is delayed at each point of the lease protocol for as long as its peers can do without
// it; the result must stay bit for bit the same, also where gradients are accumulated over two
// micro-batches and reduced once.
#include <string>
#include <tuple>
#include <vector>

#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

constexpr int kSteps = 3;

std::vector<ToyValues> Train(v1::JobSpec job, int world_size, int micro_batches,
                             ThreadRanks::Options options, int64_t* lags) {
  std::vector<ToyValues> values(world_size);
  job.mutable_memory()->set_accumulate_unsynchronized(micro_batches > 1);
  auto ranks = ThreadRanks::Create(job, world_size, std::move(options));
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    for (int step = 0; step < kSteps; ++step)
      TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01, micro_batches).status());
    TESSERA_ASSIGN_OR_RETURN(values[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  *lags = (*ranks)->lags();
  return values;
}

// Strategies that keep, replicate or reshard units, on four ranks.
class StrategyLagTest
    : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

TEST_P(StrategyLagTest, ChangesNoBit) {
  const auto& [strategy, unshard, point] = GetParam();
  v1::JobSpec job = ToyJob(unshard);
  job.mutable_mesh()->set_strategy(strategy == "reshard" ? "full_shard" : strategy);
  if (strategy == "reshard") job.mutable_mesh()->set_reshard_group(2);
  if (strategy == "hybrid_shard") job.mutable_mesh()->set_replicas(2);
  int64_t lags = 0;
  const std::vector<ToyValues> undisturbed = Train(job, 4, 1, {}, &lags);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Train(job, 4, 1, {.lag_rank = rank, .lag_point = point}, &lags), undisturbed)
        << "rank " << rank;
    EXPECT_GE(lags, kSteps) << "the point was hardly ever passed";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, StrategyLagTest,
    ::testing::Combine(::testing::Values("hybrid_shard", "shard_grad_op", "no_shard", "reshard"),
                       ::testing::Values("slots", "resident"),
                       ::testing::Values("unshard_write", "unshard_wait", "lease_release",
                                         "gradient_acquire", "reduce_ready", "reduce",
                                         "reduce_read", "optimizer")),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
             std::get<2>(info.param);
    });

class LagTest : public ::testing::TestWithParam<std::tuple<std::string, int, int, std::string>> {};

TEST_P(LagTest, ChangesNoBit) {
  const auto& [unshard, world_size, micro_batches, point] = GetParam();
  int64_t lags = 0;
  const std::vector<ToyValues> undisturbed =
      Train(ToyJob(unshard), world_size, micro_batches, {}, &lags);
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(Train(ToyJob(unshard), world_size, micro_batches,
                    {.lag_rank = rank, .lag_point = point}, &lags),
              undisturbed)
        << "rank " << rank;
    EXPECT_GE(lags, kSteps) << "the point was hardly ever passed";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, LagTest,
    ::testing::Combine(::testing::Values("slots", "resident"), ::testing::Values(2, 3),
                       ::testing::Values(1, 2),
                       ::testing::Values("unshard_write", "unshard_written", "unshard_wait",
                                         "lease_release", "gradient_acquire", "reduce_ready",
                                         "reduce", "reduce_read", "vote", "barrier", "undo_written",
                                         "optimizer", "optimizer_done")),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + std::get<3>(info.param) + "_" +
             std::to_string(std::get<1>(info.param)) + "_ranks_" +
             std::to_string(std::get<2>(info.param)) + "_micro_batches";
    });

}  // namespace
}  // namespace tessera
