// The data path of a whole job with ranks as threads, against values worked out in double
// precision.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/errors.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"
#include "worker/blame.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr double kLearningRate = 0.01;

std::unique_ptr<ThreadRanks> Make(int world_size, ThreadRanks::Options options = {},
                                  const v1::JobSpec& job = ToyJob("slots")) {
  absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks =
      ThreadRanks::Create(job, world_size, options);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  return *std::move(ranks);
}

struct Trained {
  std::vector<ToyValues> start, end;  // by rank
  std::vector<StepResult> last;
};

Trained Train(int world_size, int64_t steps, const v1::JobSpec& job = ToyJob("slots")) {
  Trained trained;
  trained.start.resize(world_size);
  trained.end.resize(world_size);
  trained.last.resize(world_size);
  const auto ranks = Make(world_size, {}, job);
  const std::vector<absl::Status> statuses = ranks->Run([&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(trained.start[session.rank()], ToySummonAll(session));
    for (int64_t step = 1; step <= steps; ++step) {
      TESSERA_ASSIGN_OR_RETURN(trained.last[session.rank()], ToyStep(session, kLearningRate));
    }
    TESSERA_ASSIGN_OR_RETURN(trained.end[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  return trained;
}

// Mode and number of ranks.
class SessionWorldTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  int world_size() const { return std::get<1>(GetParam()); }
  v1::JobSpec job() const { return ToyJob(std::get<0>(GetParam())); }
};

TEST_P(SessionWorldTest, MatchesDoublePrecisionReference) {
  const Trained trained = Train(world_size(), 6, job());
  const ToyValues expected = ToyReference(trained.start[0], world_size(), 6, kLearningRate);
  ASSERT_EQ(expected.size(), 1 + 3 * kToyBlocks);
  for (const ToyValues& rank : trained.end) {
    for (const auto& [fqn, values] : expected) {
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(rank.at(fqn)[i], values[i], 2e-6) << fqn << " " << i;
    }
  }
}

TEST_P(SessionWorldTest, SameSeedIsSameModelAtEveryWorldSize) {
  EXPECT_EQ(Train(world_size(), 0, job()).start[0], Train(1, 0).start[0]);
}

TEST_P(SessionWorldTest, EveryRankSeesTheSameBits) {
  const Trained trained = Train(world_size(), 3, job());
  for (const ToyValues& rank : trained.end) EXPECT_EQ(rank, trained.end[0]);
  // Ranks report losses 1, 2, ... of one token each.
  for (const StepResult& result : trained.last)
    EXPECT_EQ(result.loss_mean, (1.0 + world_size()) / 2);
}

TEST_P(SessionWorldTest, TwoRunsAgreeBitForBit) {
  EXPECT_EQ(Train(world_size(), 5, job()).end, Train(world_size(), 5, job()).end);
}

TEST_P(SessionWorldTest, ClippingScalesEveryGradientByTheGlobalNorm) {
  v1::JobSpec clipped = job();
  clipped.mutable_optimizer()->set_name("sgd");
  clipped.mutable_optimizer()->set_weight_decay(0);
  clipped.mutable_optimizer()->set_clip_norm(0.5);
  const Trained trained = Train(world_size(), 1, clipped);
  const double norm = trained.last[0].gradient_norm;
  ASSERT_GT(norm, 0.5);
  // With SGD the whole model moves by lr x the clipped norm.
  double moved = 0;
  for (const auto& [fqn, values] : trained.start[0]) {
    for (size_t i = 0; i < values.size(); ++i) {
      moved += std::pow(static_cast<double>(trained.end[0].at(fqn)[i]) - values[i], 2);
    }
  }
  EXPECT_NEAR(std::sqrt(moved), kLearningRate * 0.5, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SessionWorldTest,
                         ::testing::Combine(::testing::Values("slots", "resident"),
                                            ::testing::Values(1, 2, 3, 4)));

TEST(SessionTest, GradientNormIsGlobal) {
  // With no parameter moved yet, each element's averaged gradient is known; c has none.
  const Trained trained = Train(2, 1);
  double squared = 0;
  for (const auto& [fqn, values] : trained.start[0]) {
    if (fqn.back() == 'c') continue;
    const int uses = fqn == "emb.weight" ? 2 : 1;
    for (size_t i = 0; i < values.size(); ++i) {
      const double g =
          uses *
          (static_cast<double>(ToyGradient(values[i], 0, 1, i)) + ToyGradient(values[i], 1, 1, i)) /
          2;
      squared += g * g;
    }
  }
  EXPECT_NEAR(trained.last[0].gradient_norm, std::sqrt(squared), 1e-6 * std::sqrt(squared));
}

// Mode, ranks, param_dtype, reduce_dtype.
class SessionDTypeTest
    : public ::testing::TestWithParam<std::tuple<std::string, int, std::string, std::string>> {};

uint16_t Narrow(DType dtype, float value) {
  return dtype == v1::BFLOAT16 ? BFloat16FromFloat(value) : Float16FromFloat(value);
}

// The unit's views must be the masters (as Summon gives them) rounded to param_dtype.
absl::Status ExpectRoundedMasters(Session& session, int unit) {
  TESSERA_ASSIGN_OR_RETURN(const auto masters, session.SummonUnit(unit));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kEval));
  for (const SummonedParameter& master : masters) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(master.fqn));
    EXPECT_EQ(view.dtype, session.plan().units(unit).param_dtype());
    const float* values = reinterpret_cast<const float*>(master.bytes.data());
    for (int64_t i = 0; i < view.numel; ++i) {
      EXPECT_EQ(view.as<uint16_t>()[i], Narrow(view.dtype, values[i])) << master.fqn << " " << i;
    }
  }
  return absl::OkStatus();
}

// Rank r gives every element (r + 1) x k, k in 2, 4, 6: the average (W + 1) / 2 x k is exact in
// every dtype under every divide rule.
absl::Status IntegerStep(Session& session) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 1}).status());
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    const v1::UnitParameter& parameter = session.plan().units(unit).parameters(0);
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, parameter.fqn()));
    std::vector<uint16_t> half(slot.view.numel);
    for (int64_t i = 0; i < slot.view.numel; ++i) {
      // In two halves: the second is added by the session.
      half[i] = Narrow(slot.view.dtype, static_cast<float>((session.rank() + 1) * (1 + i % 3)));
      slot.view.as<uint16_t>()[i] = half[i];
    }
    TensorView again = slot.view;
    again.data = half.data();
    TESSERA_RETURN_IF_ERROR(session.SubmitGradient(unit, parameter.fqn(), again, Event()));
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return session.EndStep({}).status();
}

TEST_P(SessionDTypeTest, GradientsAverageExactlyAndViewsAreRoundedMasters) {
  const auto& [unshard, world_size, param_dtype, reduce_dtype] = GetParam();
  v1::JobSpec job = ToyJob(unshard);
  job.mutable_mixed_precision()->set_param_dtype(param_dtype);
  job.mutable_mixed_precision()->set_reduce_dtype(reduce_dtype);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  std::vector<ToyValues> start(world_size), end(world_size);
  const auto statuses = Make(world_size, {}, job)->Run([&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(start[session.rank()], ToySummonAll(session));
    TESSERA_RETURN_IF_ERROR(ExpectRoundedMasters(session, 1));
    TESSERA_RETURN_IF_ERROR(IntegerStep(session));
    TESSERA_RETURN_IF_ERROR(ExpectRoundedMasters(session, 1));
    TESSERA_ASSIGN_OR_RETURN(end[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  for (const ToyValues& rank : end) EXPECT_EQ(rank, end[0]);
  for (const auto& [fqn, values] : start[0]) {
    const bool first = fqn == "emb.weight" || fqn.back() == 'w';  // the unit's first parameter
    for (size_t i = 0; i < values.size(); ++i) {
      const float average = first ? static_cast<float>((world_size + 1) * (1 + i % 3)) : 0;
      EXPECT_EQ(end[0].at(fqn)[i], values[i] - average) << fqn << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, SessionDTypeTest,
                         ::testing::Combine(::testing::Values("slots", "resident"),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values("bfloat16", "float16"),
                                            ::testing::Values("float32", "bfloat16", "float16")));

TEST(SessionTest, ParameterOutsideItsUnitOrUseIsAnErrorThatNamesIt) {
  const auto statuses = Make(1)->Run([](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const int block, session.FindUnit("h.1"));
    TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session.Unshard(block, Phase::kEval));
    EXPECT_THAT(std::string(lease.Parameter("emb.weight").status().message()),
                HasSubstr("is in unit (root), not in unit h.1"));
    EXPECT_EQ(lease.Parameter("h.1.nothing").status().code(), absl::StatusCode::kNotFound);
    lease = UnitLease();
    EXPECT_EQ(lease.Parameter("h.1.w").status().code(), absl::StatusCode::kFailedPrecondition);
    return session.Finish();
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
}

TEST(SessionTest, UseBeyondThePlannedSlotsIsAnErrorAndNoWait) {
  const auto statuses = Make(2)->Run([](Session& session) -> absl::Status {
    std::vector<UnitLease> leases;
    for (int block = 0; block < kToyBlocks; ++block) {
      TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session.Unshard(block, Phase::kEval));
      leases.push_back(std::move(lease));
    }
    return session.Finish();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("no slot for unit h.2 while these are unsharded: h.0, h.1"));
  }
}

TEST(SessionTest, RanksThatDisagreeOnTheUnitAreNamed) {
  const auto statuses = Make(2)->Run([](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(session.rank(), Phase::kEval));
    return session.Finish();
  });
  bool named = false;
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    named = named ||
            (Reason(status) == "ORDER_MISMATCH" &&
             absl::StrContains(status.message(), "rank 0 issued unshard of unit h.0") &&
             absl::StrContains(status.message(), "rank 1 issued unshard of unit h.1")) ||
            (absl::StrContains(status.message(), "rank 1 issued unshard of unit h.1") &&
             absl::StrContains(status.message(), "rank 0"));
  }
  EXPECT_TRUE(named) << statuses[0] << " / " << statuses[1];
}

TEST(SessionTest, StepThatDepartsFromTheRecordedOrderIsAnError) {
  const auto statuses = Make(1)->Run([](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(ToyStep(session, kLearningRate).status());
    TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    return session.Unshard(0, Phase::kForward).status();
  });
  EXPECT_EQ(Reason(statuses[0]), "ORDER_MISMATCH");
  EXPECT_THAT(
      std::string(statuses[0].message()),
      HasSubstr("unshard 1 of the step is unit h.0, but the order of the steps has (root)"));
}

TEST(SessionTest, UnitThatWasNotReducedIsNamed) {
  const auto statuses = Make(1)->Run([](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
    return session.EndStep({}).status();
  });
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("unit h.0 was not reduced in this step"));
}

TEST(SessionTest, RankThatFailsEndsItsPeersByName) {
  const auto statuses = Make(3)->Run([](Session& session) -> absl::Status {
    if (session.rank() == 1) return absl::InternalError("out of luck");
    return ToyStep(session, kLearningRate).status();
  });
  for (const int peer : {0, 2}) {
    EXPECT_EQ(statuses[peer].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(statuses[peer].message()), HasSubstr("rank 1 ended: out of luck"));
    EXPECT_EQ(BlamedRank(statuses[peer]), 1);
  }
}

TEST(SessionTest, RankThatDoesNotArriveIsNamedAtTheDeadline) {
  // Rank 1 stays away until its peer has given up, however long that takes.
  std::atomic<bool> given_up = false;
  const auto statuses =
      Make(2, {.lag_rank = -1, .lag_point = "", .timeout = absl::Milliseconds(60)})
          ->Run([&](Session& session) -> absl::Status {
            if (session.rank() == 1) {
              given_up.wait(false);
              return absl::OkStatus();
            }
            const absl::Status status = session.Unshard(0, Phase::kEval).status();
            given_up = true;
            given_up.notify_all();
            return status;
          });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("unshard of unit h.0; missing: rank 1"));
  EXPECT_EQ(BlamedRank(statuses[0]), 1);
}

TEST(SessionTest, NonFiniteGradientSkipsTheStepOnAllRanks) {
  Trained trained;
  trained.start.resize(2);
  trained.end.resize(2);
  const auto statuses = Make(2)->Run([&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(trained.start[session.rank()], ToySummonAll(session));
    TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 0.1}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    for (int unit = 0; unit < session.plan().units_size(); ++unit) {
      const std::string fqn = session.plan().units(unit).parameters(0).fqn();
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, fqn));
      std::fill_n(slot.view.as<float>(), slot.view.numel, 1.0f);
      if (session.rank() == 1 && unit == 1) slot.view.as<float>()[slot.view.numel - 1] = INFINITY;
      TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
    }
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, session.EndStep({}));
    EXPECT_TRUE(result.non_finite);
    TESSERA_ASSIGN_OR_RETURN(trained.end[session.rank()], ToySummonAll(session));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(trained.start, trained.end);
}

}  // namespace
}  // namespace tessera
