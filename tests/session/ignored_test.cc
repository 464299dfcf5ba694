// Parameters in no unit, with ranks as threads: the program's own values, whose gradients the
// session averages and counts.
#include <cmath>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/session/run_ranks.h"
#include "worker/blame.h"
#include "worker/ignored_parameters.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class IgnoredTest : public ::testing::TestWithParam<ToyWorld> {
 protected:
  int world_size() const { return GetParam().ranks; }
  // The blocks' c are the program's.
  v1::JobSpec job() const {
    v1::JobSpec job = ToyJobOf(GetParam());
    job.mutable_wrap()->add_ignore("h.*.c");
    return job;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, IgnoredTest, ::testing::ValuesIn(ToyWorlds()));

// Longer than every buffer, so that it goes in parts.
TEST_P(IgnoredTest, AveragesAreExactInEveryDTypeAndOfAnyLength) {
  const auto body = [&](Session& session) -> absl::Status {
    for (const DType dtype : {v1::FLOAT64, v1::FLOAT32, v1::BFLOAT16, v1::FLOAT16}) {
      for (const int64_t numel : {0, 1, 3, 10'007}) {
        std::vector<char> memory(numel * DTypeBytes(dtype));
        const FlatTensor tensor = {memory.data(), numel, dtype};
        // Average over ranks r of (r + 1) x 2k: (W + 1) x k.
        for (int64_t i = 0; i < numel; ++i)
          SetElement(memory.data(), dtype, i, (session.rank() + 1) * 2.0 * (i % 7 - 3));
        TESSERA_RETURN_IF_ERROR(AllReduceGradients(session, tensor));
        for (int64_t i = 0; i < numel; ++i) {
          EXPECT_EQ(ElementOf(memory.data(), dtype, i), (world_size() + 1) * (i % 7 - 3.0))
              << DTypeName(dtype) << " " << i;
        }
      }
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

// One step as ToyStep's, without c, which the program has: gradient (r + 1) x scale for each of its
// elements.
absl::StatusOr<StepResult> Step(Session& session, float scale, std::vector<float>* average) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 1}).status());
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    const std::string& fqn = session.plan().units(unit).parameters(0).fqn();
    TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, fqn));
    std::fill_n(slot.view.as<float>(), slot.view.numel, 2.0f);
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  average->assign(3 * kToyBlocks, static_cast<float>(session.rank() + 1) * scale);
  TESSERA_RETURN_IF_ERROR(AllReduceGradients(
      session, {average->data(), static_cast<int64_t>(average->size()), v1::FLOAT32}));
  return session.EndStep({});
}

TEST_P(IgnoredTest, NormCountsThemOnceAndClipsThemToo) {
  v1::JobSpec spec = job();
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_weight_decay(0);
  spec.mutable_optimizer()->set_clip_norm(1);
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    EXPECT_FALSE(start.contains("h.0.c"));
    std::vector<float> average;
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, Step(session, 2, &average));
    const double own = world_size() + 1;
    EXPECT_EQ(average, std::vector<float>(9, static_cast<float>(own)));
    // 3 x 35 + 55 elements of 2 in units, and 9 of the program's.
    const double norm = std::sqrt((3 * 35 + 55) * 4 + 9 * own * own);
    EXPECT_NEAR(result.gradient_norm, norm, 1e-9 * norm);
    EXPECT_NEAR(result.clip_coefficient, 1 / norm, 1e-6 / norm);
    TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
    EXPECT_NEAR(start.at("h.0.w")[0] - end.at("h.0.w")[0], 2 / norm, 1e-6);
    return session.Finish();
  };
  ExpectOk(RunRanks(spec, world_size(), body));
}

TEST_P(IgnoredTest, InfinityInThemSkipsTheStepOnAllRanksAndTheNextGoesOn) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    std::vector<float> average;
    TESSERA_ASSIGN_OR_RETURN(
        const StepResult bad,
        Step(session, session.rank() == world_size() - 1 ? INFINITY : 1, &average));
    EXPECT_TRUE(bad.non_finite);
    TESSERA_ASSIGN_OR_RETURN(const ToyValues skipped, ToySummonAll(session));
    EXPECT_EQ(skipped, start);
    TESSERA_ASSIGN_OR_RETURN(const StepResult good, Step(session, 1, &average));
    EXPECT_FALSE(good.non_finite);
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

TEST_P(IgnoredTest, OrphansOfARootThatIsNoUnitAreTheProgramsToo) {
  v1::JobSpec spec = ToyJobOf(GetParam());
  spec.mutable_wrap()->set_root_unit("by_policy");
  const auto body = [&](Session& session) -> absl::Status {
    EXPECT_EQ(session.plan().units_size(), kToyBlocks);
    EXPECT_EQ(session.FindUnit("").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(session.FindUnitOf("emb.weight").status().code(), absl::StatusCode::kNotFound);
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    std::vector<float> average;
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, Step(session, 2, &average));
    const double own = world_size() + 1;
    EXPECT_NEAR(result.gradient_norm, std::sqrt(3 * 35 * 4 + 9 * own * own), 1e-6);
    for (int unit = 0; unit < kToyBlocks; ++unit) {
      TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kEval));
      const std::string fqn = absl::StrCat("h.", unit, ".b");
      TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(fqn));
      EXPECT_EQ(view.as<float>()[4], start.at(fqn)[4]);
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(spec, world_size(), body));
}

TEST(IgnoredRulesTest, WhatRanksDoNotAgreeOnIsNamed) {
  using Body = std::function<absl::Status(Session&)>;
  const auto reduce = [&](Session& session, int64_t numel, DType dtype) {
    std::vector<float> own(64);
    return AllReduceGradients(session, {own.data(), numel, dtype});
  };
  const auto open = [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    TESSERA_RETURN_IF_ERROR(session.GradientView(1, "h.1.w").status());
    return reduce(session, 4, v1::FLOAT32);
  };
  const std::vector<std::pair<Body, std::string>> cases = {
      {[&](Session& s) { return reduce(s, 4 + s.rank(), v1::FLOAT32); },
       "AllReduceGradients of 4 x float32 on rank 0 and 5 x float32 on rank 1"},
      {[&](Session& s) { return reduce(s, 4, s.rank() == 0 ? v1::FLOAT32 : v1::BFLOAT16); },
       "4 x bfloat16 on rank 1"},
      {[&](Session& s) { return reduce(s, 4, v1::INT32); }, "AllReduceGradients of int32"},
      {open, "unit h.1 has gradients that are not reduced"},
      {[](Session& s) {
         return CheckEqualOnAllRanks(s, "the biases", s.rank() == 0 ? "abc" : "abd");
       },
       "the biases differ between rank 0 and rank 1"},
  };
  for (const auto& [body, message] : cases) {
    const auto statuses = RunRanks(ToyJob("slots"), 2, body);
    EXPECT_THAT(Messages(statuses), HasSubstr(message));
    for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok()) << message;
  }
}

TEST(IgnoredRulesTest, EqualValuesPass) {
  ExpectOk(RunRanks(ToyJob("slots"), 3, [](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckEqualOnAllRanks(session, "the biases", "abc"));
    TESSERA_RETURN_IF_ERROR(CheckEqualOnAllRanks(session, "nothing", ""));
    return session.Finish();
  }));
}

}  // namespace
}  // namespace tessera
