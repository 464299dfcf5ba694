// Communication hooks with ranks as threads: what they are given, what becomes of what they give,
// and those that are provided, against values worked out by hand.
#include <cmath>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/error_feedback_hook.h"
#include "tests/session/run_ranks.h"
#include "worker/communication_hooks.h"

namespace tessera {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

v1::JobSpec Job(const ToyWorld& world, const std::string& param = "",
                const std::string& reduce = "") {
  v1::JobSpec job = ToyJobOf(world);
  job.mutable_mixed_precision()->set_param_dtype(param);
  job.mutable_mixed_precision()->set_reduce_dtype(reduce);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  return job;
}

// One step in which every rank gives every element of each unit's first parameter `value(rank)`,
// once for each micro-batch, all of which synchronise.
absl::Status Step(Session& session, const std::function<double(int rank)>& value,
                  int micro_batches = 1) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 1}).status());
  for (int index = 0; index < micro_batches; ++index) {
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({.index = index}));
    for (int unit = 0; unit < session.plan().units_size(); ++unit) {
      const std::string& fqn = session.plan().units(unit).parameters(0).fqn();
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(unit, fqn));
      for (int64_t i = 0; i < slot.view.numel; ++i)
        SetElement(slot.view.data, slot.view.dtype, i, value(session.rank()));
      TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
    }
  }
  return session.EndStep({}).status();
}

// By how much the step moved each element: its averaged gradient, since SGD's rate is 1.
absl::StatusOr<ToyValues> Gradients(Session& session, const std::function<double(int rank)>& value,
                                    int micro_batches = 1) {
  TESSERA_ASSIGN_OR_RETURN(ToyValues start, ToySummonAll(session));
  TESSERA_RETURN_IF_ERROR(Step(session, value, micro_batches));
  TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
  for (auto& [fqn, values] : start) {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= end.at(fqn)[i];
  }
  return start;
}

// First parameters of units got `average`, the others nothing, as far as parameters near 0 and 30
// tell in float32.
void ExpectGradients(const ToyValues& gradients, double average) {
  for (const auto& [fqn, values] : gradients) {
    const bool first = fqn == "emb.weight" || fqn.back() == 'w';
    for (const float value : values) EXPECT_NEAR(value, first ? average : 0, 1e-5) << fqn;
  }
}

std::vector<ToyWorld> ShardedWorlds() {
  std::vector<ToyWorld> worlds;
  for (const ToyWorld& world : ToyWorlds()) {
    if (world.strategy != "no_shard" && world.replicas == 1) worlds.push_back(world);
  }
  return worlds;
}

class HooksTest : public ::testing::TestWithParam<ToyWorld> {
 protected:
  int world_size() const { return GetParam().ranks; }
  v1::JobSpec job(const std::string& param = "", const std::string& reduce = "") const {
    return Job(GetParam(), param, reduce);
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, HooksTest, ::testing::ValuesIn(ShardedWorlds()));

TEST_P(HooksTest, ReduceScatterHookTrainsAsTheSessionDoes) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, ReduceScatterHook()));
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    for (int step = 0; step < 3; ++step) TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
    const ToyValues want = ToyReference(start, world_size(), 3, 0.01);
    for (const auto& [fqn, values] : want) {
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(end.at(fqn)[i], values[i], 2e-5) << fqn << " " << i;
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(ToyJobOf(GetParam()), world_size(), body));
}

TEST_P(HooksTest, GetsTheUnitInReduceDTypeAndItsOutputIsTheShard) {
  const auto body = [&](Session& session) -> absl::Status {
    std::vector<int> units;
    CommunicationHook hook;
    hook.name = "mine";
    hook.run = [&](CommunicationGroup& group, const FlatTensor& gradient,
                   const FlatTensor* output) -> absl::Status {
      units.push_back(group.unit());
      EXPECT_EQ(group.size(), world_size());
      EXPECT_EQ(group.index(), session.rank());
      EXPECT_NE(output, nullptr);
      EXPECT_EQ(gradient.dtype, v1::FLOAT32);
      EXPECT_EQ(output->dtype, v1::FLOAT32);
      EXPECT_EQ(gradient.numel, output->numel * world_size());
      // What no gradient was written into, and padding, are zeros.
      const int64_t numel = session.plan().units(group.unit()).parameters(0).numel();
      for (int64_t i = 0; i < gradient.numel; ++i)
        EXPECT_EQ(gradient.as<float>()[i], i < numel ? 3 : 0) << i;
      for (int64_t i = 0; i < output->numel; ++i)
        output->as<float>()[i] = static_cast<float>(session.rank() + 1);
      return absl::OkStatus();
    };
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, hook));
    TESSERA_RETURN_IF_ERROR(Step(session, [](int) { return 3; }));
    EXPECT_THAT(units, ::testing::ElementsAre(0, 1, 2, 3));
    for (int unit = 0; unit < 4; ++unit) {
      TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(unit));
      EXPECT_THAT(shard.as<float>(), Each(static_cast<float>(session.rank() + 1)));
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(job("bfloat16", "float32"), world_size(), body));
}

TEST_P(HooksTest, LowPrecisionHookGetsComputeDTypeAndGivesTheGradientsOwn) {
  const auto body = [&](Session& session) -> absl::Status {
    CommunicationHook hook;
    hook.name = "low";
    hook.low_precision = true;
    hook.run = [&](CommunicationGroup&, const FlatTensor& gradient,
                   const FlatTensor* output) -> absl::Status {
      EXPECT_EQ(gradient.dtype, v1::BFLOAT16);
      EXPECT_EQ(output->dtype, v1::FLOAT32);
      for (int64_t i = 0; i < output->numel; ++i) output->as<float>()[i] = 1 + 0x1p-20f;
      return absl::OkStatus();
    };
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, hook));
    TESSERA_RETURN_IF_ERROR(Step(session, [](int) { return 1; }));
    TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(1));
    EXPECT_THAT(shard.as<float>(), Each(1 + 0x1p-20f));
    return session.Finish();
  };
  ExpectOk(RunRanks(job("bfloat16", "float16"), world_size(), body));
}

TEST_P(HooksTest, ReductionsOfLaterMicroBatchesAreAdded) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, ReduceScatterHook()));
    const auto value = [](int rank) { return 4.0 * (rank + 1); };
    TESSERA_ASSIGN_OR_RETURN(const ToyValues gradients, Gradients(session, value, 3));
    ExpectGradients(gradients, 3 * 2.0 * (world_size() + 1));
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

// 1 + 2^-9 is a float16; the bfloat16 numbers beside it are 1 and 1 + 2^-7.
TEST_P(HooksTest, CompressedGradientsAreRoundedToTheHooksDType) {
  for (const bool bfloat16 : {false, true}) {
    for (const char* const param : {"", "float16"}) {
      const auto body = [&](Session& session) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(
            RegisterCommunicationHook(session, bfloat16 ? Bf16CompressHook() : Fp16CompressHook()));
        TESSERA_RETURN_IF_ERROR(Step(session, [](int) { return 1 + 0x1p-9; }));
        TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(0));
        // 35 elements of h.0.w come first; rank 0's shard has some at every world size here.
        if (session.rank() > 0) return session.Finish();
        // At 3 ranks a third is rounded: within an ulp of the format.
        const double want = bfloat16 ? 1 : 1 + 0x1p-9;
        const double ulp = world_size() != 3 ? 0 : bfloat16 ? 0x1p-7 : 0x1p-9;
        for (int i = 0; i < 8; ++i) EXPECT_NEAR(shard.as<float>()[i], want, ulp);
        return session.Finish();
      };
      ExpectOk(RunRanks(job(param, "float32"), world_size(), body));
    }
  }
}

TEST_P(HooksTest, AllReduceOfTheGroupSumsOnEveryRank) {
  const auto body = [&](Session& session) -> absl::Status {
    CommunicationHook hook;
    hook.name = "whole";
    hook.run = [&](CommunicationGroup& group, const FlatTensor& gradient,
                   const FlatTensor* output) -> absl::Status {
      TESSERA_RETURN_IF_ERROR(group.AllReduce(gradient));
      const int64_t begin = group.index() * output->numel;
      for (int64_t i = 0; i < output->numel; ++i)
        output->as<float>()[i] = gradient.as<float>()[begin + i];
      return absl::OkStatus();
    };
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, hook));
    TESSERA_ASSIGN_OR_RETURN(const ToyValues gradients,
                             Gradients(session, [](int rank) { return rank + 1.0; }));
    ExpectGradients(gradients, world_size() * (world_size() + 1) / 2.0);
    return session.Finish();
  };
  ExpectOk(RunRanks(job(), world_size(), body));
}

TEST_P(HooksTest, ErrorFeedbackLosesNothingOverSteps) {
  for (const bool feedback : {false, true}) {
    const auto body = [&](Session& session) -> absl::Status {
      TESSERA_RETURN_IF_ERROR(
          RegisterCommunicationHook(session, feedback ? ErrorFeedbackHook() : Bf16CompressHook()));
      double sum = 0;
      for (int step = 0; step < 8; ++step) {
        TESSERA_RETURN_IF_ERROR(Step(session, [](int) { return 1 + 0x1p-9; }));
        TESSERA_ASSIGN_OR_RETURN(const ShardSpan shard, session.GradientShard(0));
        sum += shard.as<float>()[0];
      }
      if (session.rank() > 0) return session.Finish();
      const double lost = 8 * (1 + 0x1p-9) - sum;
      EXPECT_NEAR(lost, feedback ? 0 : 0x1p-6, world_size() == 3 ? 1e-5 : 0);
      return session.Finish();
    };
    ExpectOk(RunRanks(job(), world_size(), body));
  }
}

TEST(HookRulesTest, WhatCannotBeRegisteredIsNamed) {
  using Body = std::function<absl::Status(Session&)>;
  CommunicationHook nothing = ReduceScatterHook();
  nothing.run = nullptr;
  CommunicationHook unnamed = ReduceScatterHook();
  unnamed.name = "";
  const auto twice = [](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, Bf16CompressHook()));
    return RegisterCommunicationHook(session, Bf16CompressHook());
  };
  const auto late = [](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    return RegisterCommunicationHook(session, Bf16CompressHook());
  };
  const auto other = [](Session& session) {
    return RegisterCommunicationHook(session,
                                     session.rank() == 0 ? Bf16CompressHook() : Fp16CompressHook());
  };
  const auto alone = [](Session& session) {
    return session.rank() == 0 ? RegisterCommunicationHook(session, Bf16CompressHook())
                               : ToyStep(session, 0.01).status();
  };
  const auto whole = [](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, AllReduceHook()));
    return ToyStep(session, 0.01).status();
  };
  const std::vector<std::pair<Body, std::string>> cases = {
      {[&](Session& s) { return RegisterCommunicationHook(s, nothing); }, "has nothing to run"},
      {[&](Session& s) { return RegisterCommunicationHook(s, unnamed); }, "name has 0 bytes"},
      {twice, "\"bf16_compress\" is registered after another"},
      {late, "is registered after the first step began"},
      {other,
       "rank 1 registers the communication hook \"fp16_compress\", rank 0 \"bf16_compress\""},
      {alone, "rank 1 issued unshard of unit (root)"},
      {whole, "the hook allreduce is for mesh.strategy no_shard"},
  };
  for (const auto& [body, message] : cases) {
    const auto statuses = RunRanks(ToyJob("slots"), 2, body);
    EXPECT_THAT(Messages(statuses), HasSubstr(message));
    for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok()) << message;
  }
}

// Ranks. Each has everything: a hook gets one tensor, and averages it in place.
class NoShardHooksTest : public ::testing::TestWithParam<int> {
 protected:
  v1::JobSpec job(const std::string& param = "", const std::string& reduce = "") const {
    return Job({"slots", GetParam(), "no_shard"}, param, reduce);
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, NoShardHooksTest, ::testing::Values(1, 2, 3, 4));

TEST_P(NoShardHooksTest, AllReduceHookTrainsAsTheSessionDoes) {
  const auto body = [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, AllReduceHook()));
    TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
    for (int step = 0; step < 3; ++step) TESSERA_RETURN_IF_ERROR(ToyStep(session, 0.01).status());
    TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
    const ToyValues want = ToyReference(start, GetParam(), 3, 0.01);
    for (const auto& [fqn, values] : want) {
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_NEAR(end.at(fqn)[i], values[i], 2e-5) << fqn << " " << i;
    }
    return session.Finish();
  };
  ExpectOk(RunRanks(ToyJobOf({"slots", GetParam(), "no_shard"}), GetParam(), body));
}

TEST_P(NoShardHooksTest, HookAveragesOneTensorInPlace) {
  for (const bool low : {false, true}) {
    const auto body = [&](Session& session) -> absl::Status {
      CommunicationHook hook = low ? Bf16CompressHook() : AllReduceHook();
      hook.run = [&, run = hook.run](CommunicationGroup& group, const FlatTensor& gradient,
                                     const FlatTensor* output) -> absl::Status {
        EXPECT_EQ(output, nullptr);
        EXPECT_EQ(gradient.dtype, low ? v1::FLOAT32 : v1::BFLOAT16);
        return run(group, gradient, output);
      };
      TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, hook));
      TESSERA_ASSIGN_OR_RETURN(const ToyValues gradients,
                               Gradients(session, [](int rank) { return 4.0 * (rank + 1); }));
      ExpectGradients(gradients, 2.0 * (GetParam() + 1));
      return session.Finish();
    };
    ExpectOk(RunRanks(job("float16", "bfloat16"), GetParam(), body));
  }
}

TEST(HookRulesTest, HybridStrategiesAreRejected) {
  const auto body = [](Session& session) {
    return RegisterCommunicationHook(session, Bf16CompressHook());
  };
  const auto statuses = RunRanks(ToyJobOf({"slots", 4, "hybrid_shard", 2}), 4, body);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a hybrid strategy has two"));
  }
}

TEST(HookRulesTest, ErrorOfAHookOnOneRankEndsAllByName) {
  const auto body = [](Session& session) -> absl::Status {
    CommunicationHook hook = ReduceScatterHook();
    hook.run = [&, run = hook.run](CommunicationGroup& group, const FlatTensor& gradient,
                                   const FlatTensor* output) -> absl::Status {
      if (session.rank() == 1 && group.unit() == 1) return absl::InternalError("no luck");
      return run(group, gradient, output);
    };
    TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, hook));
    return ToyStep(session, 0.01).status();
  };
  const auto statuses = RunRanks(ToyJob("slots"), 3, body);
  EXPECT_EQ(statuses[1].message(), "no luck");
  for (const int rank : {0, 2})
    EXPECT_THAT(std::string(statuses[rank].message()), HasSubstr("rank 1 ended: no luck"));
}

}  // namespace
}  // namespace tessera
