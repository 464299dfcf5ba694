// The data path under every strategy and mesh of one host, with ranks as threads: against values
// worked out in double precision, and gradients that are exact under any order of summation.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kLearningRate = 0.01;

struct MeshCase {
  std::string strategy;
  int world_size;
  int replicas;
  int reshard_group;
  std::string unshard;
};

std::string NameOf(const ::testing::TestParamInfo<MeshCase>& info) {
  const MeshCase& c = info.param;
  return absl::StrCat(c.strategy, "_", c.world_size, "_ranks_", c.replicas, "_replicas_reshard_",
                      c.reshard_group, "_", c.unshard);
}

v1::JobSpec JobOf(const MeshCase& c) {
  v1::JobSpec job = ToyJob(c.unshard);
  v1::MeshSpec& mesh = *job.mutable_mesh();
  mesh.set_strategy(c.strategy);
  mesh.set_min_workers(c.world_size);
  mesh.set_max_workers(c.world_size);
  mesh.set_replicas(c.replicas);
  mesh.set_reshard_group(c.reshard_group);
  return job;
}

std::vector<MeshCase> Cases() {
  std::vector<MeshCase> cases;
  for (const char* unshard : {"slots", "resident"}) {
    for (const int ranks : {1, 2, 3, 4}) {
      cases.push_back({"full_shard", ranks, 1, 0, unshard});
      cases.push_back({"shard_grad_op", ranks, 1, 0, unshard});
      cases.push_back({"no_shard", ranks, 1, 0, unshard});
    }
    for (const char* strategy :
         {"full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2"}) {
      cases.push_back({strategy, 4, 2, 0, unshard});
      cases.push_back({strategy, 4, 4, 0, unshard});
    }
  }
  for (const int group : {1, 2, 4}) cases.push_back({"full_shard", 4, 1, group, "slots"});
  cases.push_back({"hybrid_shard", 4, 2, 1, "slots"});
  cases.push_back({"full_shard", 2, 1, 1, "slots"});
  return cases;
}

struct Trained {
  ToyValues start;
  std::vector<ToyValues> end;  // by rank
  std::vector<StepResult> last;
};

Trained Train(const v1::JobSpec& job, int world_size, int64_t steps) {
  Trained trained;
  trained.end.resize(world_size);
  trained.last.resize(world_size);
  auto ranks = ThreadRanks::Create(job, world_size, {});
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  if (!ranks.ok()) return trained;
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    const int rank = session.rank();
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    if (rank == 0) trained.start = start;
    for (int64_t step = 1; step <= steps; ++step) {
      TESSERA_ASSIGN_OR_RETURN(trained.last[rank], ToyStep(session, kLearningRate));
    }
    TESSERA_ASSIGN_OR_RETURN(trained.end[rank], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return trained;
}

class StrategiesTest : public ::testing::TestWithParam<MeshCase> {};

TEST_P(StrategiesTest, MatchesDoublePrecisionReference) {
  const int world_size = GetParam().world_size;
  const Trained trained = Train(JobOf(GetParam()), world_size, 5);
  const ToyValues expected = ToyReference(trained.start, world_size, 5, kLearningRate);
  ASSERT_EQ(expected.size(), 1 + 3 * kToyBlocks);
  for (const ToyValues& rank : trained.end) EXPECT_EQ(rank, trained.end[0]);
  for (const auto& [fqn, values] : expected) {
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(trained.end[0].at(fqn)[i], values[i], 2e-6) << fqn << " " << i;
  }
}

// Nothing of it depends on how the model is cut; the norm counts each parameter once.
TEST_P(StrategiesTest, StartsAndMeasuresAsOneRankOfTheWholeModel) {
  const int world_size = GetParam().world_size;
  const Trained trained = Train(JobOf(GetParam()), world_size, 1);
  const Trained full = Train(JobOf({"full_shard", world_size, 1, 0, "slots"}), world_size, 1);
  EXPECT_EQ(trained.start, full.start);
  for (const StepResult& result : trained.last) {
    EXPECT_NEAR(result.gradient_norm, full.last[0].gradient_norm,
                1e-6 * full.last[0].gradient_norm);
    EXPECT_EQ(result.loss_mean, (1.0 + world_size) / 2);
  }
}

// In micro-batch m rank r gives element i of every parameter (r + 1) x (1 + i % 3) x (m + 1).
absl::Status GiveIntegers(Session& session, int unit, int micro_batch) {
  for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, parameter.fqn()));
    for (int64_t i = 0; i < slot.view.numel; ++i) {
      const auto g = static_cast<float>((session.rank() + 1) * (1 + i % 3) * (micro_batch + 1));
      slot.view.as<float>()[i] = slot.accumulate ? slot.view.as<float>()[i] + g : g;
    }
  }
  return session.Reduce(unit);
}

// The average over the ranks of (r + 1), summed over the micro-batches' (m + 1).
void ExpectIntegers(Session& session, const JobPlan& plan, int micro_batches) {
  const double average = (session.world_size() + 1) / 2.0;
  const double batches = micro_batches * (micro_batches + 1) / 2.0;
  const int index = session.rank() % plan.layout.shard_count();
  for (int unit = 0; unit < plan.plan.units_size(); ++unit) {
    const absl::Span<float> shard = session.GradientShard(unit)->as<float>();
    const int64_t begin = index * static_cast<int64_t>(shard.size());
    for (int p = 0; p < plan.plan.units(unit).parameters_size(); ++p) {
      const int64_t offset = plan.layout.units(unit).parameters(p).offset();
      for (int64_t i = 0; i < plan.plan.units(unit).parameters(p).numel(); ++i) {
        const int64_t at = offset + i - begin;
        if (at < 0 || at >= static_cast<int64_t>(shard.size())) continue;
        EXPECT_EQ(shard[at], average * batches * (1 + i % 3)) << unit << " " << p << " " << i;
      }
    }
  }
}

enum class Sync { kEach, kLast, kAllReduceLast };

void TrainIntegers(const v1::JobSpec& job, int world_size, Sync sync) {
  constexpr int kMicroBatches = 3;
  auto ranks = ThreadRanks::Create(job, world_size, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    for (int step = 0; step < 2; ++step) {
      TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 0}).status());
      for (int m = 0; m < kMicroBatches; ++m) {
        MicroBatch micro_batch;
        micro_batch.index = m;
        micro_batch.synchronize = sync != Sync::kLast || m + 1 == kMicroBatches;
        micro_batch.all_reduce = sync != Sync::kAllReduceLast || m + 1 == kMicroBatches;
        TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch(micro_batch));
        for (int unit = 0; unit < session.plan().units_size(); ++unit)
          TESSERA_RETURN_IF_ERROR(GiveIntegers(session, unit, m));
      }
      TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
      ExpectIntegers(session, (*ranks)->plan(), kMicroBatches);
    }
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(StrategiesTest, MicroBatchesAddUpExactly) {
  v1::JobSpec job = JobOf(GetParam());
  TrainIntegers(job, GetParam().world_size, Sync::kEach);
  TrainIntegers(job, GetParam().world_size, Sync::kAllReduceLast);
  job.mutable_memory()->set_accumulate_unsynchronized(true);
  TrainIntegers(job, GetParam().world_size, Sync::kLast);
}

INSTANTIATE_TEST_SUITE_P(Meshes, StrategiesTest, ::testing::ValuesIn(Cases()), NameOf);

absl::Status Misuse(Session& session, bool first, bool second) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
  for (const bool all_reduce : {first, second}) {
    MicroBatch micro_batch;
    micro_batch.all_reduce = all_reduce;
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch(micro_batch));
    for (int unit = 0; unit < session.plan().units_size(); ++unit)
      TESSERA_RETURN_IF_ERROR(GiveIntegers(session, unit, 0));
  }
  return session.EndStep({}).status();
}

TEST(ReplicasTest, SumOfOneGroupAloneIsNoGradient) {
  const MeshCase hybrid = {"hybrid_shard", 4, 2, 0, "slots"};
  auto ranks = *ThreadRanks::Create(JobOf(hybrid), 4, {});
  for (const absl::Status& status :
       ranks->Run([](Session& session) { return Misuse(session, false, false); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a last micro-batch with all_reduce"));
  }
  ranks = *ThreadRanks::Create(JobOf(hybrid), 4, {});
  for (const absl::Status& status :
       ranks->Run([](Session& session) { return Misuse(session, true, false); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("averaged over all ranks in an earlier"));
  }
}

}  // namespace
}  // namespace tessera
