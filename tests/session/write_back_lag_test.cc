// Shards written by others than the optimizer, with one rank delayed wherever it goes through the
// protocol: nobody may read a unit while a slow rank still writes its slice of it, nor write while
// a slow rank still reads.
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "tests/session/run_ranks.h"
#include "worker/communication_hooks.h"
#include "worker/ignored_parameters.h"
#include "worker/write_back.h"

namespace tessera {
namespace {

constexpr int kRanks = 3;

// Mode, lagging rank, point.
class WriteBackLagTest
    : public ::testing::TestWithParam<std::tuple<std::string, int, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Points, WriteBackLagTest,
                         ::testing::Combine(::testing::Values("slots", "resident"),
                                            ::testing::Values(0, 1, 2),
                                            ::testing::Values("unshard_write", "unshard_written",
                                                              "unshard_wait", "lease_release",
                                                              "gradient_acquire", "barrier",
                                                              "export")));

// Round n sets every element of h.1.w to n and reads it, while the unit is read, written and
// reduced through hooks and sums on all ranks.
absl::Status Round(Session& session, int round) {
  const auto value = static_cast<float>(round);
  TESSERA_ASSIGN_OR_RETURN(SummonedParameter weight, session.Summon("h.1.w", true));
  auto* values = reinterpret_cast<float*>(weight.bytes.data());
  for (int i = 0; i < 35; ++i) {
    if (values[i] != value - 1) return absl::DataLossError("summoned before it was written");
    values[i] = value;
  }
  TESSERA_RETURN_IF_ERROR(WriteBack(session, {&weight, 1}));
  TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 0}).status());
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    const std::string& fqn = session.plan().units(unit).parameters(0).fqn();
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kForward));
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(fqn));
    for (int i = 0; fqn == "h.1.w" && i < 35; ++i) {
      if (view.as<float>()[i] != value) return absl::DataLossError("read before it was written");
    }
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, fqn));
    std::fill_n(slot.view.as<float>(), slot.view.numel, value * (session.rank() + 1));
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  std::vector<float> own(100, value * (session.rank() + 1));
  TESSERA_RETURN_IF_ERROR(AllReduceGradients(session, {own.data(), 100, v1::FLOAT32}));
  TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
  // 1 + 2 + 3 of 3 ranks: the average is twice the value.
  if (own != std::vector<float>(100, 2 * value)) return absl::DataLossError("a sum is torn");
  TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(0));
  if (session.rank() == 0 && shard.as<float>()[0] != 2 * value)
    return absl::DataLossError("a reduction is torn");
  return absl::OkStatus();
}

TEST_P(WriteBackLagTest, NoRankSeesAnotherMoment) {
  const auto& [unshard, lag_rank, point] = GetParam();
  ThreadRanks::Options options;
  options.lag_rank = lag_rank;
  options.lag_point = point;
  v1::JobSpec job = ToyJob(unshard);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  ExpectOk(RunRanks(
      job, kRanks,
      [](Session& session) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, ReduceScatterHook()));
        TESSERA_ASSIGN_OR_RETURN(SummonedParameter weight, session.Summon("h.1.w", true));
        std::fill_n(reinterpret_cast<float*>(weight.bytes.data()), 35, 0.0f);
        TESSERA_RETURN_IF_ERROR(WriteBack(session, {&weight, 1}));
        for (int round = 1; round <= 4; ++round) TESSERA_RETURN_IF_ERROR(Round(session, round));
        return session.Finish();
      },
      options));
}

}  // namespace
}  // namespace tessera
