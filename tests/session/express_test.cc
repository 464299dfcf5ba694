// What a trainer's own loop can express with a Session, each against a reference in double
// precision that knows of no shards, slots or micro-batches.
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/tanh_model.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Recompute = TanhRank::Recompute;

constexpr double kLearningRate = 0.5;
constexpr int64_t kSteps = 3;
// Parameters are around 0.5; float32 arithmetic errs by a few 1e-7, a fault by more than 1e-3.
constexpr double kTolerance = 3e-6;

// A batch of four that depends on all of these.
TanhBatch BatchOf(int rank, int64_t step, int micro_batch) {
  TanhBatch batch;
  for (int i = 0; i < 4; ++i) {
    const int token = static_cast<int>((7 * i + 3 * rank + step + 5 * micro_batch) % kTanhTokens);
    batch.push_back({.token = token, .target = (2 * token + 1 + i) % kTanhTokens});
  }
  return batch;
}

// The batch of a rank's micro-batch.
using Data = std::function<TanhBatch(int rank, int64_t step, int micro_batch)>;
// What a rank does between BeginStep and EndStep; returns the sum of its examples' losses.
using Program = std::function<absl::StatusOr<double>(Session&, int64_t step)>;

// Mode with, where it is not full_shard, a strategy or "reshard"; number of ranks.
class ExpressTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  int world_size() const { return std::get<1>(GetParam()); }
  v1::JobSpec job() const {
    const std::vector<std::string> words = absl::StrSplit(std::get<0>(GetParam()), ' ');
    v1::JobSpec job = TanhJob(words[0]);
    v1::MeshSpec& mesh = *job.mutable_mesh();
    mesh.set_max_workers(world_size());
    if (words.size() < 2) return job;
    if (words[1] == "reshard") {
      mesh.set_reshard_group(2);
      return job;
    }
    mesh.set_strategy(words[1]);
    if (absl::StartsWith(words[1], "hybrid")) mesh.set_replicas(world_size() / 2);
    return job;
  }
  v1::JobSpec AccumulatingJob() const {
    v1::JobSpec job = this->job();
    job.mutable_memory()->set_accumulate_unsynchronized(true);
    return job;
  }

  // The mean over ranks and micro-batches.
  std::function<double(const TanhValues&, int64_t)> MeanLoss(const Data& data,
                                                             int micro_batches) const {
    return [=, ranks = world_size()](const TanhValues& values, int64_t step) {
      double loss = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int m = 0; m < micro_batches; ++m) loss += TanhLoss(values, data(rank, step, m));
      }
      return loss / (ranks * micro_batches);
    };
  }

  // Runs `program` for kSteps steps on every rank. Returns the parameters after them.
  TanhValues Run(const v1::JobSpec& job, const Program& program) {
    const int ranks = world_size();
    std::vector<TanhValues> end(ranks);
    losses_.assign(ranks, {});
    auto threads = ThreadRanks::Create(job, ranks, {});
    EXPECT_TRUE(threads.ok()) << threads.status();
    if (!threads.ok()) return {};
    const auto statuses = (*threads)->Run([&](Session& session) -> absl::Status {
      TESSERA_ASSIGN_OR_RETURN(const TanhValues start, TanhSummonAll(session));
      if (session.rank() == 0) start_ = start;
      for (int64_t step = 1; step <= kSteps; ++step) {
        TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = kLearningRate}).status());
        TESSERA_ASSIGN_OR_RETURN(const double loss, program(session, step));
        TESSERA_ASSIGN_OR_RETURN(const StepResult result,
                                 session.EndStep({.loss_sum = loss, .loss_count = 4}));
        losses_[session.rank()].push_back(result.loss_mean);
      }
      TESSERA_ASSIGN_OR_RETURN(end[session.rank()], TanhSummonAll(session));
      return session.Finish();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    for (const TanhValues& rank : end) EXPECT_EQ(rank, end[0]);
    return end[0];
  }

  // Runs `program` and compares what it makes of the parameters with what the reference does.
  // Programs that see `micro_batches` batches a step give the losses of all of them.
  void ExpectTrains(const v1::JobSpec& job, const Data& data, int micro_batches,
                    const Program& program) {
    const TanhValues end = Run(job, program);
    const auto loss = MeanLoss(data, micro_batches);
    const TanhValues expected = TanhTrain(start_, kSteps, kLearningRate, loss);
    ExpectNear(end, expected);
    ASSERT_EQ(losses_[0].size(), kSteps);
    EXPECT_NEAR(losses_[0][0], micro_batches * loss(start_, 1), 1e-5);
  }

  static void ExpectNear(const TanhValues& actual, const TanhValues& expected) {
    ASSERT_EQ(actual.size(), 1 + 3 * kTanhBlocks);
    for (const auto& [fqn, values] : expected) {
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        worst = std::max(worst, std::abs(values[i] - actual.at(fqn)[i]));
      }
      EXPECT_LE(worst, kTolerance) << fqn;
    }
  }

  // A step of micro-batches, each forward and backward at once; `synchronizes` says which of them
  // reduce.
  static Program InMicroBatches(const Data& data, std::vector<bool> synchronizes,
                                TanhRank::BackwardOptions options = {}) {
    options.scale = 1.0f / static_cast<float>(synchronizes.size());
    return [=](Session& session, int64_t step) -> absl::StatusOr<double> {
      TanhRank rank(session);
      double loss = 0;
      for (int m = 0; m < static_cast<int>(synchronizes.size()); ++m) {
        TESSERA_RETURN_IF_ERROR(
            session.BeginMicroBatch({.index = m, .synchronize = synchronizes[m]}));
        TanhRank::Tape tape;
        TESSERA_ASSIGN_OR_RETURN(
            const double sum, rank.Forward(data(session.rank(), step, m), Phase::kForward, &tape));
        loss += sum;
        TESSERA_RETURN_IF_ERROR(rank.Backward({std::move(tape)}, options));
      }
      return loss;
    };
  }

  TanhValues start_;
  std::vector<std::vector<double>> losses_;  // by rank, of each step
};

TEST_P(ExpressTest, TiedWeightsUsedTwice) {
  ExpectTrains(job(), BatchOf, 1, InMicroBatches(BatchOf, {true}));
}

TEST_P(ExpressTest, TwoForwardsBeforeOneBackward) {
  ExpectTrains(job(), BatchOf, 2, [](Session& session, int64_t step) -> absl::StatusOr<double> {
    TanhRank rank(session);
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    std::vector<TanhRank::Tape> tapes(2);
    double loss = 0;
    for (int m = 0; m < 2; ++m) {
      TESSERA_ASSIGN_OR_RETURN(const double sum, rank.Forward(BatchOf(session.rank(), step, m),
                                                              Phase::kForward, &tapes[m]));
      loss += sum;
    }
    TESSERA_RETURN_IF_ERROR(rank.Backward(std::move(tapes), {.scale = 0.5f}));
    return loss;
  });
}

TEST_P(ExpressTest, RecomputationWhileTheUnitIsUnsharded) {
  const Program plain = InMicroBatches(BatchOf, {true});
  for (const Recompute recompute : {Recompute::kInsideBackward, Recompute::kAroundBackward}) {
    TanhRank::BackwardOptions options;
    options.recompute = recompute;
    const Program program = InMicroBatches(BatchOf, {true}, options);
    ExpectTrains(job(), BatchOf, 1, program);
    // What is recomputed is what was computed.
    EXPECT_EQ(Run(job(), program), Run(job(), plain));
  }
}

// An evaluation of every rank's own batch; the mean loss over all ranks.
absl::StatusOr<double> Evaluate(Session& session) {
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({.gradients = false}));
  TanhRank::Tape tape;
  TESSERA_ASSIGN_OR_RETURN(
      double loss, TanhRank(session).Forward(BatchOf(session.rank(), 0, 7), Phase::kEval, &tape));
  TESSERA_RETURN_IF_ERROR(session.AllReduceSum(absl::MakeSpan(&loss, 1)));
  return loss / (4 * session.world_size());
}

TEST_P(ExpressTest, EvaluationWithoutBackwardAnywhereInALoop) {
  // Of a step: one that synchronises, one that does not, one that does.
  const std::vector<bool> synchronizes = {true, false, true};
  const TanhValues plain = Run(AccumulatingJob(), InMicroBatches(BatchOf, synchronizes));
  const TanhValues expected = TanhTrain(start_, kSteps, kLearningRate, MeanLoss(BatchOf, 3));
  ExpectNear(plain, expected);

  std::vector<std::vector<double>> seen(world_size());
  const TanhValues evaluated =
      Run(AccumulatingJob(), [&](Session& session, int64_t step) -> absl::StatusOr<double> {
        TanhRank rank(session);
        double loss = 0;
        for (int m = 0; m < 3; ++m) {
          // At the step's start; then between its micro-batches, with gradients reduced or kept.
          TESSERA_ASSIGN_OR_RETURN(seen[session.rank()].emplace_back(), Evaluate(session));
          TESSERA_RETURN_IF_ERROR(
              session.BeginMicroBatch({.index = m, .synchronize = synchronizes[m]}));
          TanhRank::Tape tape;
          TESSERA_ASSIGN_OR_RETURN(const double sum, rank.Forward(BatchOf(session.rank(), step, m),
                                                                  Phase::kForward, &tape));
          loss += sum;
          TESSERA_RETURN_IF_ERROR(rank.Backward({std::move(tape)}, {.scale = 1.0f / 3}));
        }
        TESSERA_ASSIGN_OR_RETURN(seen[session.rank()].emplace_back(), Evaluate(session));
        return loss;
      });
  EXPECT_EQ(evaluated, plain);
  // All four evaluations of a step see what the steps before it left.
  TanhValues values = start_;
  const auto held_out = MeanLoss([](int rank, int64_t, int) { return BatchOf(rank, 0, 7); }, 1);
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(seen[0].at(4 * (step - 1) + i), held_out(values, 0), 1e-5) << step << " " << i;
    }
    values = TanhTrain(values, 1, kLearningRate, [&](const TanhValues& at, int64_t) {
      return MeanLoss(BatchOf, 3)(at, step);
    });
  }
  for (const std::vector<double>& rank : seen) EXPECT_EQ(rank, seen[0]);
}

TEST_P(ExpressTest, AccumulationWithoutSynchronisation) {
  for (const std::vector<bool>& synchronizes :
       {std::vector<bool>{false, true}, {false, false, true}, {true, false, true}}) {
    ExpectTrains(AccumulatingJob(), BatchOf, static_cast<int>(synchronizes.size()),
                 InMicroBatches(BatchOf, synchronizes));
  }
}

// The same as one micro-batch with all examples, but for the order of additions; and as
// accumulation with synchronisation.
TEST_P(ExpressTest, BothWaysToAccumulateAgree) {
  const TanhValues once = Run(AccumulatingJob(), InMicroBatches(BatchOf, {false, false, true}));
  ExpectNear(Run(job(), InMicroBatches(BatchOf, {true, true, true})), once);
}

// Rank 1 never uses c, and passes h.1 by; rank 2 uses c in its second micro-batch alone.
TanhBatch UnevenBatchOf(int rank, int64_t step, int micro_batch) {
  TanhBatch batch = BatchOf(rank, step, micro_batch);
  for (TanhExample& example : batch) {
    example.passes_h1 = rank == 1;
    example.uses_c = rank != 1 && (rank == 0 || micro_batch == 1);
  }
  return batch;
}

TEST_P(ExpressTest, ParametersAndUnitsWithoutGradientsOnSomeRanks) {
  ExpectTrains(job(), UnevenBatchOf, 1, InMicroBatches(UnevenBatchOf, {true}));
  ExpectTrains(job(), UnevenBatchOf, 2, InMicroBatches(UnevenBatchOf, {true, true}));
  ExpectTrains(AccumulatingJob(), UnevenBatchOf, 2, InMicroBatches(UnevenBatchOf, {false, true}));
}

// Two units are written before the first of them is reduced, and one of the ranks has gradients for
// the second only: it must not take the first one's buffer. (Once the ranks then added h.1 to h.2.)
TEST_P(ExpressTest, RanksThatSkipAUnitDoNotShiftTheOthers) {
  const Data data = [](int rank, int64_t step, int micro_batch) {
    TanhBatch batch = BatchOf(rank, step, micro_batch);
    for (TanhExample& example : batch) example.passes_h1 = rank == 1;
    return batch;
  };
  for (const bool late : {false, true}) {
    TanhRank::BackwardOptions options;
    options.reduce_late = late;
    ExpectTrains(job(), data, 1, InMicroBatches(data, {true}, options));
  }
  // All ranks write both; rank 1 asks for them in the other order.
  std::vector<TanhValues> start(world_size()), end(world_size());
  const auto statuses =
      (*ThreadRanks::Create(job(), world_size(), {}))->Run([&](Session& session) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(start[session.rank()], TanhSummonAll(session));
        TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 1}).status());
        TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
        for (const int unit : session.rank() == 1 ? std::vector{1, 2} : std::vector{2, 1}) {
          TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot,
                                   session.GradientView(unit, absl::StrCat("h.", unit, ".b")));
          std::fill_n(slot.view.as<float>(), slot.view.numel, static_cast<float>(unit));
        }
        for (const int unit : {2, 1, 0, 3}) TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
        TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
        TESSERA_ASSIGN_OR_RETURN(end[session.rank()], TanhSummonAll(session));
        return session.Finish();
      });
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  for (const int unit : {1, 2}) {
    const std::string fqn = absl::StrCat("h.", unit, ".b");
    for (int i = 0; i < kTanhWidth; ++i) {
      EXPECT_EQ(static_cast<float>(end[0].at(fqn)[i]),
                static_cast<float>(start[0].at(fqn)[i]) - static_cast<float>(unit));
    }
  }
}

// Gradients are kept in param_dtype: 256 + 1 is 256 in bfloat16, as in FSDP's no_sync. Reduced each
// time, the sum is in float32. Averages of equal integers are exact.
TEST_P(ExpressTest, KeptGradientsAreInTheComputeDType) {
  v1::JobSpec job = AccumulatingJob();
  job.mutable_mixed_precision()->set_param_dtype("bfloat16");
  job.mutable_mixed_precision()->set_reduce_dtype("float32");
  for (const bool synchronize : {false, true}) {
    std::vector<TanhValues> start(world_size()), end(world_size());
    const auto statuses =
        (*ThreadRanks::Create(job, world_size(), {}))->Run([&](Session& session) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(start[session.rank()], TanhSummonAll(session));
          TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 1}).status());
          for (const float value : {256.0f, 1.0f}) {
            TESSERA_RETURN_IF_ERROR(
                session.BeginMicroBatch({.synchronize = synchronize || value == 1.0f}));
            std::vector<uint16_t> values(kTanhWidth, BFloat16FromFloat(value));
            const TensorView gradient = {.data = values.data(),
                                         .dtype = v1::BFLOAT16,
                                         .shape = {kTanhWidth},
                                         .numel = kTanhWidth};
            TESSERA_RETURN_IF_ERROR(session.SubmitGradient(0, "h.0.b", gradient, Event()));
            for (const int unit : {0, 1, 2, 3}) TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
          }
          TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
          TESSERA_ASSIGN_OR_RETURN(end[session.rank()], TanhSummonAll(session));
          return session.Finish();
        });
    for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
    for (int i = 0; i < kTanhWidth; ++i) {
      EXPECT_EQ(static_cast<float>(end[0].at("h.0.b")[i]),
                static_cast<float>(start[0].at("h.0.b")[i]) - (synchronize ? 257.0f : 256.0f));
    }
  }
}

// A unit that nothing trains has no gradient buffer of its own, but is summoned through one.
TEST_P(ExpressTest, FrozenUnitBesideAccumulation) {
  v1::JobSpec job = AccumulatingJob();
  v1::Module* blocks = job.mutable_model()->mutable_spec()->mutable_root()->mutable_children(1);
  for (v1::Parameter& parameter : *blocks->mutable_children(1)->mutable_parameters()) {
    parameter.set_requires_grad(false);
  }
  const Data data = [](int rank, int64_t step, int micro_batch) {
    TanhBatch batch = BatchOf(rank, step, micro_batch);
    for (TanhExample& example : batch) example.passes_h1 = true;
    return batch;
  };
  ExpectTrains(job, data, 2, InMicroBatches(data, {false, true}));
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return absl::StrCat(absl::StrReplaceAll(std::get<0>(info.param), {{" ", "_"}}), "_",
                      std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Worlds, ExpressTest,
                         ::testing::Combine(::testing::Values("slots", "resident"),
                                            ::testing::Values(2, 3)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(
    Strategies, ExpressTest,
    ::testing::Combine(::testing::Values("slots shard_grad_op", "slots no_shard",
                                         "slots hybrid_shard", "slots hybrid_shard_zero2",
                                         "slots reshard", "resident no_shard",
                                         "resident hybrid_shard"),
                       ::testing::Values(4)),
    NameOf);

TEST(AccumulationTest, NeedsBuffersThatTheJobAskedFor) {
  const auto statuses =
      (*ThreadRanks::Create(TanhJob("slots"), 1, {}))->Run([](Session& session) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
        return session.BeginMicroBatch({.synchronize = false});
      });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("memory.accumulate_unsynchronized"));
}

TEST(AccumulationTest, StepThatEndsWithKeptGradientsIsAnErrorThatNamesTheUnit) {
  v1::JobSpec job = TanhJob("resident");
  job.mutable_memory()->set_accumulate_unsynchronized(true);
  const auto statuses =
      (*ThreadRanks::Create(job, 1, {}))->Run([](Session& session) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
        TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
        for (int unit = 0; unit < 4; ++unit) TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
        TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({.index = 1, .synchronize = false}));
        TESSERA_RETURN_IF_ERROR(session.Reduce(1));
        return session.EndStep({}).status();
      });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("unit h.1 ends the step with gradients of micro-batches that were not"));
}

}  // namespace
}  // namespace tessera
