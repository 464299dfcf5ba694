// State dicts, full and sharded, with ranks as threads: a model trained half of the way, taken out
// and put into another session, of another size, ends as one trained all the way.
#include "worker/state_dict.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/session/run_ranks.h"
#include "worker/blame.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kRate = 0.01;

using Dict = std::map<std::string, ParameterState>;

absl::Status Train(Session& session, int steps) {
  for (int step = 0; step < steps; ++step)
    TESSERA_RETURN_IF_ERROR(ToyStep(session, kRate).status());
  return absl::OkStatus();
}

// The whole state after `steps` steps at `world_size`, as rank 0 gets it.
Dict SaveFull(const v1::JobSpec& job, int world_size, int steps, StateCounters* counters) {
  Dict dict;
  std::vector<int> visits(world_size);
  ExpectOk(RunRanks(job, world_size, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Train(session, steps));
    if (session.rank() == 0) *counters = CountersOf(session);
    TESSERA_RETURN_IF_ERROR(VisitFullState(session, {}, [&](absl::Span<const ParameterState> unit) {
      ++visits[session.rank()];
      for (const ParameterState& state : unit) dict[state.value.fqn] = state;
      return absl::OkStatus();
    }));
    return session.Finish();
  }));
  for (int rank = 0; rank < world_size; ++rank)
    EXPECT_EQ(visits[rank], rank == 0 ? kToyBlocks + 1 : 0);
  return dict;
}

auto Finder(const Dict& dict) {
  return [&dict](const std::string& fqn) -> absl::StatusOr<ParameterState> {
    const auto it = dict.find(fqn);
    if (it == dict.end()) return absl::NotFoundError(absl::StrCat("no ", fqn));
    return it->second;
  };
}

// Every parameter after `steps` steps from the dict, at `world_size`.
ToyValues ResumeFull(const v1::JobSpec& job, int world_size, const Dict& dict,
                     const StateCounters& counters, int steps) {
  std::vector<ToyValues> end(world_size);
  ExpectOk(RunRanks(job, world_size, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(LoadFullState(session, {}, counters, Finder(dict)));
    EXPECT_EQ(CountersOf(session).step, counters.step);
    TESSERA_RETURN_IF_ERROR(Train(session, steps));
    EXPECT_EQ(CountersOf(session).step, counters.step + steps);
    TESSERA_ASSIGN_OR_RETURN(end[session.rank()], ToySummonAll(session));
    return session.Finish();
  }));
  for (const ToyValues& rank : end) EXPECT_EQ(rank, end[0]);
  return end[0];
}

ToyValues TrainAllTheWay(const v1::JobSpec& job, int world_size, int steps) {
  ToyValues end;
  ExpectOk(RunRanks(job, world_size, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Train(session, steps));
    TESSERA_ASSIGN_OR_RETURN(ToyValues all, ToySummonAll(session));
    if (session.rank() == 0) end = std::move(all);
    return session.Finish();
  }));
  return end;
}

class StateDictTest : public ::testing::TestWithParam<ToyWorld> {
 protected:
  int world_size() const { return GetParam().ranks; }
  v1::JobSpec job() const { return ToyJobOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Worlds, StateDictTest, ::testing::ValuesIn(ToyWorlds()));

TEST_P(StateDictTest, FullStateResumesBitForBit) {
  StateCounters counters;
  const Dict dict = SaveFull(job(), world_size(), 2, &counters);
  EXPECT_EQ(counters.step, 2);
  EXPECT_EQ(counters.updates, 2);
  EXPECT_EQ(ResumeFull(job(), world_size(), dict, counters, 2),
            TrainAllTheWay(job(), world_size(), 4));
}

TEST_P(StateDictTest, FullStateHasEachParameterOnceInItsShape) {
  StateCounters counters;
  const Dict dict = SaveFull(job(), world_size(), 1, &counters);
  EXPECT_EQ(dict.size(), 3u * kToyBlocks + 1);
  const ParameterState& emb = dict.at("emb.weight");
  EXPECT_THAT(emb.tied_fqns, ElementsAre("head.weight"));
  EXPECT_EQ(emb.value.dtype, v1::FLOAT32);
  EXPECT_THAT(emb.value.shape, ElementsAre(11, 5));
  ASSERT_EQ(emb.optimizer.size(), 2u);
  EXPECT_EQ(emb.optimizer[0].name, "exp_avg");
  EXPECT_EQ(emb.optimizer[1].name, "exp_avg_sq");
  // After one step from zero the moments are (1 - beta) times the gradient and its square: their
  // ratio m^2 / v is (1 - beta1)^2 / (1 - beta2) = 0.01 / 0.05.
  for (int i = 0; i < 55; ++i) {
    float m, v;
    std::memcpy(&m, emb.optimizer[0].bytes.data() + i * sizeof(float), sizeof(float));
    std::memcpy(&v, emb.optimizer[1].bytes.data() + i * sizeof(float), sizeof(float));
    EXPECT_NEAR(m * m, 0.2 * v, 1e-6 * v + 1e-12) << i;
  }
}

// All ranks' slices, copied.
struct Saved {
  std::vector<std::string> memory;  // what the views of `shards` are of
  std::vector<ParameterShard> shards;
  StateCounters counters;
};

absl::string_view Keep(Saved* saved, absl::string_view bytes) {
  return saved->memory.emplace_back(bytes);
}

std::unique_ptr<Saved> SaveShards(const v1::JobSpec& job, int world_size, int steps) {
  auto saved = std::make_unique<Saved>();
  saved->memory.reserve(10'000);  // no string moves
  std::vector<std::vector<ParameterShard>> shards(world_size);
  std::vector<std::atomic<bool>> turn(world_size + 1);
  turn[0] = true;
  ExpectOk(RunRanks(job, world_size, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Train(session, steps));
    TESSERA_ASSIGN_OR_RETURN(const auto own, ShardedState(session, {}));
    turn[session.rank()].wait(false);
    saved->counters = CountersOf(session);
    for (ParameterShard shard : own) {
      shard.bytes = Keep(saved.get(), shard.bytes);
      for (ParameterShard::Array& array : shard.optimizer)
        array.bytes = Keep(saved.get(), array.bytes);
      saved->shards.push_back(std::move(shard));
    }
    turn[session.rank() + 1] = true;
    turn[session.rank() + 1].notify_all();
    return session.Finish();
  }));
  return saved;
}

ToyValues ResumeShards(const v1::JobSpec& job, int world_size, const Saved& saved, int steps) {
  ToyValues end;
  ExpectOk(RunRanks(job, world_size, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(LoadShardedState(session, {}, saved.counters, saved.shards));
    TESSERA_RETURN_IF_ERROR(Train(session, steps));
    TESSERA_ASSIGN_OR_RETURN(ToyValues all, ToySummonAll(session));
    if (session.rank() == 0) end = std::move(all);
    return session.Finish();
  }));
  return end;
}

TEST_P(StateDictTest, SlicesOfAllRanksAreEveryCopyOfTheModelOnce) {
  const auto saved = SaveShards(job(), world_size(), 1);
  StateCounters counters;
  const Dict dict = SaveFull(job(), world_size(), 1, &counters);
  std::map<std::string, std::vector<int>> seen;
  for (const ParameterShard& shard : saved->shards) {
    const ParameterState& whole = dict.at(shard.fqn);
    EXPECT_EQ(shard.shape, whole.value.shape);
    EXPECT_EQ(shard.bytes.size(), shard.numel * sizeof(float));
    EXPECT_EQ(shard.bytes, absl::string_view(whole.value.bytes.data() + shard.begin * 4,
                                             shard.numel * sizeof(float)));
    ASSERT_EQ(shard.optimizer.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(shard.optimizer[i].bytes,
                absl::string_view(whole.optimizer[i].bytes.data() + shard.begin * 4,
                                  shard.numel * sizeof(float)));
    }
    std::vector<int>& count = seen[shard.fqn];
    count.resize(whole.value.bytes.size() / sizeof(float));
    for (int64_t i = 0; i < shard.numel; ++i) ++count[shard.begin + i];
  }
  EXPECT_EQ(seen.size(), dict.size());
  const int copies = GetParam().strategy == "no_shard" ? world_size() : GetParam().replicas;
  for (const auto& [fqn, count] : seen) EXPECT_THAT(count, ::testing::Each(copies)) << fqn;
}

TEST_P(StateDictTest, SlicesResumeBitForBitAtTheSameSize) {
  const auto saved = SaveShards(job(), world_size(), 2);
  EXPECT_EQ(ResumeShards(job(), world_size(), *saved, 2), TrainAllTheWay(job(), world_size(), 4));
}

// A model in another dtype, whose ranks give every element 3 x (rank + 1) / 64 + step / 8.
v1::JobSpec JobIn(const std::string& dtype) {
  v1::JobSpec job = ToyJob("slots");
  job.mutable_optimizer()->set_clip_norm(1);
  job.mutable_mixed_precision()->set_loss_scale("1024");
  std::function<void(v1::Module*)> set = [&](v1::Module* module) {
    for (v1::Parameter& parameter : *module->mutable_parameters()) parameter.set_dtype(dtype);
    for (v1::Module& child : *module->mutable_children()) set(&child);
  };
  set(job.mutable_model()->mutable_spec()->mutable_root());
  return job;
}

absl::Status StepIn(Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const StepInfo step, session.BeginStep({.learning_rate = kRate}));
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  const double value = 3.0 * (session.rank() + 1) / 64 + static_cast<double>(step.step) / 8;
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot,
                               session.GradientView(unit, parameter.fqn()));
      for (int64_t i = 0; i < slot.view.numel; ++i)
        SetElement(slot.view.data, slot.view.dtype, i, value * step.loss_scale);
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return session.EndStep({}).status();
}

// Values and the optimizer's arrays, by FQN.
using Bytes = std::map<std::string, std::vector<std::vector<char>>>;

TEST(StateDictDTypeTest, ModelsOfEveryDTypeResumeBitForBit) {
  const std::vector<std::tuple<std::string, DType, DType>> cases = {
      {"float64", v1::FLOAT64, v1::FLOAT64},
      {"bfloat16", v1::BFLOAT16, v1::FLOAT32},
      {"float16", v1::FLOAT16, v1::FLOAT32}};
  for (const auto& [name, dtype, state_dtype] : cases) {
    Dict half;
    Bytes ends[2];
    for (const bool resumed : {false, true}) {
      ExpectOk(RunRanks(
          JobIn(name), 3, [&, d = dtype, s = state_dtype](Session& session) -> absl::Status {
            Dict dict;
            const auto keep = [&](absl::Span<const ParameterState> unit) {
              for (const ParameterState& state : unit) {
                EXPECT_EQ(state.value.dtype, d);
                EXPECT_EQ(state.optimizer[0].dtype, s);
                dict[state.value.fqn] = state;
              }
              return absl::OkStatus();
            };
            if (resumed) {
              const StateCounters counters = {.step = 2, .updates = 2, .loss_scale = 1024};
              TESSERA_RETURN_IF_ERROR(LoadFullState(session, {}, counters, Finder(half)));
            } else {
              for (int step = 0; step < 2; ++step) TESSERA_RETURN_IF_ERROR(StepIn(session));
              TESSERA_RETURN_IF_ERROR(VisitFullState(session, {}, keep));
              TESSERA_RETURN_IF_ERROR(session.Barrier("taken out"));
              if (session.rank() == 0) half = dict;
            }
            for (int step = 0; step < 2; ++step) TESSERA_RETURN_IF_ERROR(StepIn(session));
            EXPECT_EQ(CountersOf(session).step, 4);
            EXPECT_EQ(CountersOf(session).loss_scale, 1024);
            TESSERA_RETURN_IF_ERROR(VisitFullState(session, {}, keep));
            for (const auto& [fqn, state] : dict) {
              ends[resumed ? 1 : 0][fqn] = {state.value.bytes, state.optimizer[0].bytes,
                                            state.optimizer[1].bytes};
            }
            return session.Finish();
          }));
    }
    EXPECT_EQ(ends[0].size(), 10u);
    EXPECT_EQ(ends[0], ends[1]) << name;
  }
}

TEST(StateDictReshardTest, SlicesOfAnotherSizeAndWrappingGiveTheSameModel) {
  const auto saved = SaveShards(ToyJob("resident"), 4, 2);
  v1::JobSpec whole = ToyJob("slots");
  whole.mutable_wrap()->clear_wrap_classes();
  whole.mutable_wrap()->set_policy("none");
  for (const int world_size : {1, 2, 3}) {
    // No step: the values are the same bits wherever they lie.
    EXPECT_EQ(ResumeShards(ToyJob("slots"), world_size, *saved, 0),
              TrainAllTheWay(ToyJob("resident"), 4, 2));
    EXPECT_EQ(ResumeShards(whole, world_size, *saved, 0), TrainAllTheWay(ToyJob("resident"), 4, 2));
  }
}

TEST(StateDictReshardTest, FullStateOfAnotherSizeGivesTheSameModel) {
  StateCounters counters;
  const Dict dict = SaveFull(ToyJob("slots"), 3, 2, &counters);
  for (const int world_size : {1, 4}) {
    EXPECT_EQ(ResumeFull(ToyJob("resident"), world_size, dict, counters, 0),
              TrainAllTheWay(ToyJob("slots"), 3, 2));
  }
}

TEST(StateDictTiesTest, EntryUnderATiedNameIsTheSameStorage) {
  StateCounters counters;
  Dict dict = SaveFull(ToyJob("slots"), 2, 1, &counters);
  const ToyValues want = ResumeFull(ToyJob("slots"), 2, dict, counters, 0);
  dict["head.weight"] = dict.at("emb.weight");
  dict.erase("emb.weight");
  EXPECT_EQ(ResumeFull(ToyJob("slots"), 2, dict, counters, 0), want);
}

TEST(StateDictRulesTest, OnEveryRankAndWithoutOptimizerOnRequest) {
  std::vector<int> parameters(2);
  ExpectOk(RunRanks(ToyJob("slots"), 2, [&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(VisitFullState(session, {.optimizer = false, .rank0_only = false},
                                           [&](absl::Span<const ParameterState> unit) {
                                             for (const ParameterState& state : unit)
                                               EXPECT_TRUE(state.optimizer.empty());
                                             parameters[session.rank()] +=
                                                 static_cast<int>(unit.size());
                                             return absl::OkStatus();
                                           }));
    return session.Finish();
  }));
  EXPECT_THAT(parameters, ElementsAre(10, 10));
}

TEST(StateDictRulesTest, SgdHasItsMomentumAndFrozenParametersHaveNothing) {
  v1::JobSpec job = ToyJob("slots");
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_momentum(0.9);
  job.mutable_model()
      ->mutable_spec()
      ->mutable_root()
      ->mutable_children(1)
      ->mutable_children(0)
      ->mutable_parameters(2)
      ->set_requires_grad(false);
  StateCounters counters;
  const Dict dict = SaveFull(job, 2, 1, &counters);
  ASSERT_EQ(dict.at("h.0.w").optimizer.size(), 1u);
  EXPECT_EQ(dict.at("h.0.w").optimizer[0].name, "momentum_buffer");
  EXPECT_TRUE(dict.at("h.0.c").optimizer.empty());
  EXPECT_EQ(ResumeFull(job, 2, dict, counters, 1), TrainAllTheWay(job, 2, 2));
}

// What is spoilt in the dict before it is loaded at 2 ranks, and the error of some rank.
TEST(StateDictRulesTest, WhatCannotBeLoadedIsNamed) {
  StateCounters counters;
  const Dict dict = SaveFull(ToyJob("slots"), 2, 1, &counters);
  const std::vector<std::tuple<std::function<void(Dict*, int)>, std::string>> cases = {
      {[](Dict* d, int) { d->erase("h.1.b"); }, "no h.1.b"},
      {[](Dict* d, int) {
         d->at("h.1.b").value.shape = {1, 5};
       },
       "parameter \"h.1.b\" is float32 [1, 5] and the plan has float32 [5]"},
      {[](Dict* d, int) { d->at("h.1.b").value.dtype = v1::BFLOAT16; }, "is bfloat16 [5]"},
      {[](Dict* d, int) { d->at("h.1.b").value.bytes.resize(16); }, "elements 0 to 5 in 16 bytes"},
      {[](Dict* d, int) { d->at("h.1.b").optimizer.pop_back(); },
       "\"h.1.b\" needs the optimizer's arrays exp_avg, exp_avg_sq"},
      {[](Dict* d, int rank) { d->at("h.1.b").value.bytes[0] ^= static_cast<char>(rank); },
       "LoadFullState of unit h.1 is given other values on rank"},
  };
  for (const auto& [spoil, message] : cases) {
    const auto statuses = RunRanks(ToyJob("slots"), 2, [&](Session& session) {
      Dict spoilt = dict;
      spoil(&spoilt, session.rank());
      return LoadFullState(session, {}, counters, Finder(spoilt));
    });
    for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok()) << message;
    EXPECT_THAT(Messages(statuses), HasSubstr(message));
  }
}

TEST(StateDictRulesTest, ShardsThatLeaveOutAnElementAreRefusedOnEveryRankBeforeAnyChange) {
  auto saved = SaveShards(ToyJob("slots"), 2, 1);
  for (size_t i = 0; i < saved->shards.size(); ++i) {
    if (saved->shards[i].fqn != "h.2.w" || saved->shards[i].begin != 0) continue;
    saved->shards.erase(saved->shards.begin() + static_cast<int64_t>(i));
    break;
  }
  const auto statuses = RunRanks(ToyJob("slots"), 2, [&](Session& session) {
    return LoadShardedState(session, {}, saved->counters, saved->shards);
  });
  EXPECT_THAT(Messages(statuses), HasSubstr("no shard has element 0 of parameter \"h.2.w\""));
  for (const absl::Status& status : statuses)
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST(StateDictRulesTest, RanksThatDoNotComeAreNamedAndNobodyHangs) {
  const auto visit = [](Session& session) {
    return VisitFullState(session, {}, [](absl::Span<const ParameterState>) {
      ADD_FAILURE() << "not all ranks are there";
      return absl::OkStatus();
    });
  };
  // Rank 1 is in something else: another exchange between ranks, then another operation.
  const auto barrier = RunRanks(ToyJob("slots"), 3, [&](Session& session) {
    return session.rank() == 1 ? session.Barrier("elsewhere") : visit(session);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(std::string(barrier[rank].message()), HasSubstr("rank 1")) << rank;
    EXPECT_FALSE(barrier[rank].ok());
  }
  EXPECT_THAT(Messages(barrier), HasSubstr("is in VisitFullState and rank 1 is somewhere else"));
  const auto unshard = RunRanks(ToyJob("slots"), 2, [&](Session& session) {
    return session.rank() == 1 ? session.Unshard(0, Phase::kEval).status() : visit(session);
  });
  EXPECT_THAT(Messages(unshard), HasSubstr("rank 1 issued unshard of unit h.0"));
  // Rank 1 does not come at all until the others have given up.
  std::atomic<bool> given_up = false;
  const auto absent =
      RunRanks(ToyJob("slots"), 2,
               [&](Session& session) -> absl::Status {
                 if (session.rank() == 1) {
                   given_up.wait(false);
                   return absl::OkStatus();
                 }
                 const absl::Status status = visit(session);
                 given_up = true;
                 given_up.notify_all();
                 return status;
               },
               {.lag_rank = -1, .lag_point = "", .timeout = absl::Milliseconds(60)});
  EXPECT_EQ(absent[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(absent[0].message()), HasSubstr("VisitFullState; missing: rank 1"));
  EXPECT_EQ(BlamedRank(absent[0]), 1);
}

}  // namespace
}  // namespace tessera
