// Faults that users of FSDP and FairScale reported for sharding, reduction and memory, each as a
// test of the right behaviour here. A name ends with the upstream issue where there is one.
#include <cmath>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kLearningRate = 0.01;

v1::JobSpec Job(const std::string& strategy, int world_size, int replicas) {
  v1::JobSpec job = ToyJob("slots");
  v1::MeshSpec& mesh = *job.mutable_mesh();
  mesh.set_strategy(strategy);
  mesh.set_min_workers(world_size);
  mesh.set_max_workers(world_size);
  mesh.set_replicas(replicas);
  return job;
}

struct Trained {
  std::vector<ToyValues> start, end;  // by rank
  std::vector<StepResult> last;
  // By rank: the gradient shards of the last step, one unit after the other.
  std::vector<std::vector<float>> gradients;
};

Trained Train(const v1::JobSpec& job, int world_size, int64_t steps) {
  Trained run;
  run.start.resize(world_size);
  run.end.resize(world_size);
  run.last.resize(world_size);
  run.gradients.resize(world_size);
  auto ranks = ThreadRanks::Create(job, world_size, {});
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    const int rank = session.rank();
    TESSERA_ASSIGN_OR_RETURN(run.start[rank], ToySummonAll(session));
    for (int64_t step = 1; step <= steps; ++step) {
      TESSERA_ASSIGN_OR_RETURN(run.last[rank], ToyStep(session, kLearningRate));
    }
    for (int unit = 0; unit < session.plan().units_size(); ++unit) {
      TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(unit));
      const absl::Span<float> values = shard.as<float>();
      run.gradients[rank].insert(run.gradients[rank].end(), values.begin(), values.end());
    }
    TESSERA_ASSIGN_OR_RETURN(run.end[rank], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return run;
}

// The tied weight has 11 x 5 elements, which three ranks cannot share evenly: the last rank's rows
// are trained like the others.
TEST(FailuresTest, TiedWeightOfUnevenShardsIsTrainedToItsLastRowTorch176076) {
  const Trained run = Train(Job("full_shard", 3, 1), 3, 4);
  const ToyValues expected = ToyReference(run.start[0], 3, 4, kLearningRate);
  const std::vector<float>& tied = run.end[0].at("emb.weight");
  ASSERT_EQ(tied.size(), 55u);
  for (size_t i = 0; i < tied.size(); ++i) {
    EXPECT_NEAR(tied[i], expected.at("emb.weight")[i], 2e-6) << i;
    EXPECT_NE(tied[i], run.start[0].at("emb.weight")[i]) << i;
  }
}

// The first gradients are sums of multiples of 1/8 and of the initial parameters' halves; with
// parameters of 1 they are exact in every order.
TEST(FailuresTest, HybridGradientsAreThoseOfOneDimensionBitForBitTorch140183) {
  v1::JobSpec job = Job("hybrid_shard", 4, 2);
  const auto exact = [](v1::JobSpec made) {
    made.mutable_optimizer()->set_name("sgd");
    for (v1::Module& child :
         *made.mutable_model()->mutable_spec()->mutable_root()->mutable_children()) {
      for (v1::Parameter& parameter : *child.mutable_parameters())
        parameter.mutable_init()->set_kind("ones");
      for (v1::Module& block : *child.mutable_children()) {
        for (v1::Parameter& parameter : *block.mutable_parameters())
          parameter.mutable_init()->set_kind("ones");
      }
    }
    return made;
  };
  const Trained hybrid = Train(exact(job), 4, 1);
  const Trained one_dimension = Train(exact(Job("full_shard", 2, 1)), 2, 1);
  const Trained four = Train(exact(Job("full_shard", 4, 1)), 4, 1);
  EXPECT_EQ(hybrid.end, four.end);
  EXPECT_NE(hybrid.end[0], one_dimension.end[0]);  // not the average of one group alone
  EXPECT_EQ(hybrid.last[0].gradient_norm, four.last[0].gradient_norm);
}

TEST(FailuresTest, ReplicasStartFromTheSameBitsOlmoCore319) {
  const Trained run = Train(Job("hybrid_shard", 4, 2), 4, 0);
  for (const ToyValues& rank : run.start) EXPECT_EQ(rank, run.start[0]);
  EXPECT_EQ(run.start[0], Train(Job("full_shard", 1, 1), 1, 0).start[0]);
}

// Shards repeat over the replicas: rank 2 has the region of rank 0, not that of a fourth quarter.
TEST(FailuresTest, ShardOffsetsAreThoseOfTheShardGroupRlinf1522) {
  const Trained run = Train(Job("hybrid_shard", 4, 2), 4, 2);
  EXPECT_EQ(run.gradients[2], run.gradients[0]);
  EXPECT_EQ(run.gradients[3], run.gradients[1]);
  EXPECT_NE(run.gradients[1], run.gradients[0]);
}

TEST(FailuresTest, NormIsOfAllShardsAndCountsReplicasOnceTorchtitan766) {
  const Trained run = Train(Job("hybrid_shard_zero2", 4, 2), 4, 1);
  double squares = 0;  // of one replica
  for (const int rank : {0, 1}) {
    for (const float g : run.gradients[rank]) squares += static_cast<double>(g) * g;
  }
  for (const StepResult& result : run.last)
    EXPECT_NEAR(result.gradient_norm, std::sqrt(squares), 1e-9 * std::sqrt(squares));
}

v1::JobSpec WithFrozenBlock(v1::JobSpec job) {
  v1::Module* blocks = job.mutable_model()->mutable_spec()->mutable_root()->mutable_children(1);
  for (v1::Parameter& parameter : *blocks->mutable_children(1)->mutable_parameters())
    parameter.set_requires_grad(false);
  return job;
}

// A frozen unit is gathered for the backward that passes through it and let go of there: with one
// slot beside the root's and no prefetch the next unit would find none otherwise.
TEST(FailuresTest, FrozenUnitIsFreedInTheBackwardThatUsedItTorch95805) {
  v1::JobSpec job = WithFrozenBlock(Job("full_shard", 2, 1));
  job.mutable_memory()->set_prefetch(0);
  const auto ranks = *ThreadRanks::Create(job, 2, {});
  ASSERT_EQ(ranks->plan().layout.unsharded_slots_size(), 2);
  const auto statuses = ranks->Run([&](Session& session) -> absl::Status {
    for (int step = 0; step < 3; ++step) {
      TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
      TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
      for (const int unit : {0, 1, 2})
        TESSERA_RETURN_IF_ERROR(session.Unshard(unit, Phase::kForward).status());
      for (const int unit : {2, 1, 0}) {
        TESSERA_RETURN_IF_ERROR(session.Unshard(unit, Phase::kBackward).status());
        TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
      }
      TESSERA_RETURN_IF_ERROR(session.Reduce(3));
      TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
    }
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// However far the caller runs ahead, no more is gathered than there are slots for: an Unshard
// beyond them is an error, where an allocator would have grown (torch 95805's and 147168's kind).
TEST(FailuresTest, GathersInFlightAreBoundedByTheSlotsTorch83917) {
  const auto statuses =
      (*ThreadRanks::Create(Job("full_shard", 2, 1), 2, {}))->Run([](Session& session) {
        for (const int unit : {0, 1, 2}) {
          if (absl::Status status = session.Prefetch(unit); !status.ok()) return status;
        }
        std::vector<UnitLease> leases;
        for (const int unit : {0, 1, 2}) {
          absl::StatusOr<UnitLease> lease = session.Unshard(unit, Phase::kEval);
          if (!lease.ok()) return lease.status();
          leases.push_back(*std::move(lease));
        }
        return absl::OkStatus();
      });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("no slot for unit h.2"));
  }
}

}  // namespace
}  // namespace tessera
