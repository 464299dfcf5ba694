// A rank dies at each point of a step in turn, and another takes over its memory file: what comes
// of the job is bit for bit what would have come of it undisturbed.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_reader.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/mortal_ranks.h"
#include "tests/session/run_ranks.h"
#include "tests/session/toy_model.h"

namespace tessera {
namespace {

constexpr int64_t kSteps = 4;

// What the ranks saw, each rank for itself; a step that a rank has seen before must be as it was.
class Trace {
 public:
  void Add(int rank, const StepResult& result) {
    MutexLock lock(mutex_);
    const auto [seen, added] = norms_[rank].emplace(result.step, result.gradient_norm);
    EXPECT_EQ(seen->second, result.gradient_norm) << added << " " << rank << " " << result.step;
  }
  void SetValues(int rank, ToyValues values) {
    MutexLock lock(mutex_);
    values_[rank] = std::move(values);
  }
  void AddAttempt(int64_t step, int64_t attempt) {
    MutexLock lock(mutex_);
    attempts_[step] = std::max(attempts_[step], attempt);
  }

  // By rank; a rank that died knows only the steps since.
  std::map<int, std::map<int64_t, double>> norms_;
  std::map<int, ToyValues> values_;
  std::map<int64_t, int64_t> attempts_;

 private:
  Mutex mutex_;
};

absl::Status TrainOn(Session& session, Trace& trace) {
  StepOptions options;
  options.learning_rate_at = [](int64_t step) { return 0.01 * static_cast<double>(step); };
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(const StepInfo info, session.BeginStep(options));
    if (info.recovered.has_value()) {
      EXPECT_EQ(info.recovered->step, info.step - 1);
      trace.Add(session.rank(), *info.recovered);
    }
    if (info.step > kSteps) return absl::OkStatus();
    trace.AddAttempt(info.step, info.attempt);
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, ToyRestOfStep(session, info));
    trace.Add(session.rank(), result);
    if (result.step == kSteps) return absl::OkStatus();
  }
}

absl::Status Conclude(Session& session, Trace& trace) {
  TESSERA_ASSIGN_OR_RETURN(ToyValues values, ToySummonAll(session));
  trace.SetValues(session.rank(), std::move(values));
  return session.Finish();
}

absl::Status Train(Session& session, Trace& trace) {
  for (;;) {
    absl::Status status = TrainOn(session, trace);
    if (status.ok()) status = Conclude(session, trace);
    if (!GenerationEnded(status)) return status;
  }
}

v1::JobSpec JobOf(const ToyWorld& world) {
  v1::JobSpec job = ToyJobOf(world);
  job.set_steps(kSteps);
  return job;
}

Trace& Undisturbed(const ToyWorld& world) {
  static auto* const kept = new std::map<std::string, Trace>();
  const std::string key = absl::StrCat(world.unshard, world.strategy, world.ranks);
  const bool made = kept->count(key) > 0;
  Trace& trace = (*kept)[key];
  if (!made) {
    ExpectOk(RunMortalRanks(JobOf(world), world.ranks, {},
                            [&](Session& session) { return Train(session, trace); }));
    EXPECT_EQ(trace.norms_[0].size(), static_cast<size_t>(kSteps));
  }
  return trace;
}

// Runs the job with the deaths and compares with the undisturbed one.
void ExpectUnharmed(const ToyWorld& world, const std::vector<Death>& deaths) {
  Trace& expected = Undisturbed(world);
  Trace trace;
  int died = 0;
  ExpectOk(RunMortalRanks(JobOf(world), world.ranks, deaths,
                          [&](Session& session) { return Train(session, trace); },
                          {.died = &died}));
  EXPECT_EQ(died, static_cast<int>(deaths.size()));
  for (int rank = 0; rank < world.ranks; ++rank) {
    EXPECT_EQ(trace.values_[rank], expected.values_[rank]) << rank;
    for (const auto& [step, norm] : trace.norms_[rank])
      EXPECT_EQ(norm, expected.norms_[rank][step]) << rank << " " << step;
  }
}

struct Case {
  ToyWorld world;
  Death death;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.world.unshard << " " << one.world.strategy << " rank " << one.death.rank << " "
       << one.death.point << " step " << one.death.step << " passage " << one.death.passage;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* unshard : {"slots", "resident"}) {
    for (const char* point :
         {"unshard_wait", "lease_release", "gradient_acquire", "reduce_ready", "reduce",
          "reduce_read", "barrier", "vote", "undo_written", "optimizer", "optimizer_done"}) {
      for (const int rank : {0, 1}) {
        for (const int64_t step : {1, 3}) cases.push_back({{unshard, 2}, {rank, point, step}});
      }
    }
    cases.push_back({{unshard, 2}, {1, "unshard_write", 2}});
    cases.push_back({{unshard, 2}, {0, "unshard_written", 2, 2}});
    cases.push_back({{unshard, 2}, {1, "barrier", 2, 2}});    // in the vote's exchange
    cases.push_back({{unshard, 2}, {0, "optimizer", 2, 3}});  // with units before and after it
    cases.push_back({{unshard, 2}, {1, "undo_written", 4, 4}});
    cases.push_back({{unshard, 2}, {0, "export", 4}});
    cases.push_back({{unshard, 2}, {1, "barrier", 4, 3}});  // the last one, when all is done
    cases.push_back({{unshard, 3, "shard_grad_op"}, {2, "optimizer", 2}});
    cases.push_back({{unshard, 2, "no_shard"}, {1, "reduce", 2}});
    cases.push_back({{unshard, 4, "hybrid_shard", 2}, {3, "optimizer", 2}});
    cases.push_back({{unshard, 4, "hybrid_shard", 2}, {0, "reduce", 2}});
    cases.push_back({{unshard, 1}, {0, "optimizer", 2}});
  }
  return cases;
}

// Of a coordinator that listens.
struct Heard {
  Mutex mutex;
  std::vector<std::pair<int, int>> broken;  // a rank, and whom it blames; -1: nobody
  std::vector<std::string> messages;
  bool draining = false;
};

class Line final : public MembershipClient {
 public:
  Line(int rank, Heard* heard) : rank_(rank), heard_(heard) {}
  absl::Status JoinRank(const v1::JoinRank&, absl::Duration,
                        std::function<void(const absl::Status&)>) override {
    return absl::OkStatus();
  }
  absl::StatusOr<PlannedUnits> ListUnits(const std::string&, int64_t, absl::Duration) override {
    return PlannedUnits();
  }
  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest&,
                                      absl::Duration) override {
    return absl::OkStatus();
  }
  absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(const v1::FetchCommunicatorIdsRequest&,
                                                           absl::Duration) override {
    return v1::CommunicatorIds();
  }
  absl::Status AwaitStart(int64_t, int64_t, absl::Duration) override { return absl::OkStatus(); }
  void Break(const absl::Status& status, std::optional<int> blamed_rank) override {
    MutexLock lock(heard_->mutex);
    heard_->broken.emplace_back(rank_, blamed_rank.value_or(-1));
    heard_->messages.emplace_back(status.message());
  }
  bool Draining() const override {
    MutexLock lock(heard_->mutex);
    return heard_->draining;
  }
  void Interrupt(const absl::Status&) override {}
  void ReportStats(v1::ReportStatsRequest) override {}
  void Leave(const absl::Status&, std::optional<int>, absl::Duration) override {}

 private:
  const int rank_;
  Heard* const heard_;
};

class RecoveryPointTest : public testing::TestWithParam<Case> {};

TEST_P(RecoveryPointTest, EndsWithTheBitsOfAnUndisturbedRun) {
  ExpectUnharmed(GetParam().world, {GetParam().death});
}

INSTANTIATE_TEST_SUITE_P(Points, RecoveryPointTest, testing::ValuesIn(Cases()));

TEST(RecoveryTest, RanksAreLostOneAfterTheOther) {
  for (const char* unshard : {"slots", "resident"}) {
    ExpectUnharmed({unshard, 3}, {{.rank = 1, .point = "reduce", .step = 2},
                                  {.rank = 0, .point = "vote", .step = 3, .generation = 2},
                                  {.rank = 1, .point = "optimizer", .step = 3, .generation = 3}});
  }
}

// The job is struck again while its ranks tell each other what they have kept, and while the one
// that takes over finishes the step.
TEST(RecoveryTest, ARankIsLostDuringARecovery) {
  for (const char* unshard : {"slots", "resident"}) {
    for (const int second : {0, 1}) {
      ExpectUnharmed({unshard, 2}, {{.rank = 1, .point = "optimizer", .step = 2},
                                    {.rank = second, .point = "barrier", .generation = 2}});
    }
    ExpectUnharmed({unshard, 2}, {{.rank = 1, .point = "undo_written", .step = 2},
                                  {.rank = 1, .point = "undo_written", .step = 2, .generation = 2},
                                  {.rank = 1, .point = "optimizer", .step = 2, .generation = 3}});
  }
}

// Whoever is last lost takes over from one that was lost before.
TEST(RecoveryTest, EveryRankIsLostInItsTurn) {
  ExpectUnharmed({"resident", 2}, {{.rank = 0, .point = "optimizer", .step = 1, .passage = 2},
                                   {.rank = 1, .point = "reduce", .step = 2, .generation = 2},
                                   {.rank = 0, .point = "barrier", .step = 3, .generation = 3}});
}

TEST(RecoveryTest, AStepForWhichAllHadVotedIsNotRunAgain) {
  Trace trace;
  ExpectOk(RunMortalRanks(JobOf({"slots", 2}), 2, {{.rank = 1, .point = "vote", .step = 3}},
                          [&](Session& session) { return Train(session, trace); }));
  EXPECT_EQ(trace.attempts_, (std::map<int64_t, int64_t>{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
}

// Rank 1 dies when it has reduced its last unit: rank 0 has all it needs, and votes.
TEST(RecoveryTest, AStepForWhichSomeHadVotedIsItsNextAttempt) {
  Trace trace;
  const auto body = [&](Session& session) -> absl::Status {
    for (;;) {
      absl::Status status = [&]() -> absl::Status {
        while (true) {
          TESSERA_ASSIGN_OR_RETURN(const StepInfo info, session.BeginStep({}));
          if (info.step > 3) return session.Finish();
          trace.AddAttempt(info.step, info.attempt);
          TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
          for (const int unit : {2, 1, 0, 3}) TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
          TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
        }
      }();
      if (!GenerationEnded(status)) return status;
    }
  };
  const int units = 4;
  v1::JobSpec job = ToyJob("slots");
  job.set_steps(3);
  ExpectOk(RunMortalRanks(
      job, 2, {{.rank = 1, .point = "reduce_read", .step = 2, .passage = units}}, body));
  EXPECT_EQ(trace.attempts_, (std::map<int64_t, int64_t>{{1, 1}, {2, 2}, {3, 1}}));
}

TEST(RecoveryTest, SurvivorsSayWhatTheySawAndWhomTheyBlame) {
  Heard heard;
  Trace trace;
  MortalOptions options;
  options.membership = [&](int rank) { return std::make_unique<Line>(rank, &heard); };
  ExpectOk(RunMortalRanks(
      JobOf({"slots", 2}), 2, {{.rank = 1, .point = "reduce", .step = 3}},
      [&](Session& session) { return Train(session, trace); }, options));
  EXPECT_EQ(heard.broken, (std::vector<std::pair<int, int>>{{0, 1}}));
  ASSERT_EQ(heard.messages.size(), 1u);
  EXPECT_THAT(heard.messages[0], testing::HasSubstr("the process of rank 1"));
}

TEST(RecoveryTest, CallsSayThatTheGenerationHasEndedAndLeasesAreDropped) {
  Trace trace;
  std::atomic<int> lives{0};  // of rank 1
  const auto body = [&](Session& session) -> absl::Status {
    if (session.rank() == 1 && lives++ > 0) return Train(session, trace);
    TESSERA_RETURN_IF_ERROR(session.BeginStep({.learning_rate = 0.01}).status());
    TESSERA_ASSIGN_OR_RETURN(const int block, session.FindUnit("h.0"));
    TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
    TESSERA_ASSIGN_OR_RETURN(UnitLease lease, session.Unshard(block, Phase::kForward));
    if (session.rank() == 1) lease = UnitLease();  // where it dies: rank 0 has written its part
    TESSERA_RETURN_IF_ERROR(lease.Parameter("h.0.w").status());
    EXPECT_TRUE(GenerationEnded(session.Barrier("nobody comes")));
    EXPECT_TRUE(GenerationEnded(session.BeginMicroBatch({})));
    EXPECT_TRUE(GenerationEnded(session.Unshard(block, Phase::kForward).status()));
    EXPECT_TRUE(GenerationEnded(session.GradientView(block, "h.0.w").status()));
    EXPECT_TRUE(GenerationEnded(session.Reduce(block)));
    EXPECT_TRUE(GenerationEnded(session.EndStep({}).status()));
    EXPECT_TRUE(GenerationEnded(session.Summon("h.0.w").status()));
    EXPECT_TRUE(GenerationEnded(session.Finish()));
    EXPECT_EQ(lease.Parameter("h.0.w").status().code(), absl::StatusCode::kFailedPrecondition);
    const absl::Status trained = Train(session, trace);  // over the lease of long ago
    EXPECT_FALSE(lease.Parameter("h.0.w").ok());
    return trained;
  };
  int died = 0;
  ExpectOk(RunMortalRanks(JobOf({"slots", 2}), 2,
                          {{.rank = 1, .point = "lease_release", .step = 1}}, body,
                          {.died = &died}));
  EXPECT_EQ(died, 1);
  EXPECT_EQ(trace.values_[0], Undisturbed({"slots", 2}).values_[0]);
}

TEST(RecoveryTest, AStepThatWasTheLastOfADrainStaysTheLast) {
  Heard heard;
  heard.draining = true;  // from the first step on
  MortalOptions options;
  options.membership = [&](int rank) { return std::make_unique<Line>(rank, &heard); };
  std::atomic<int> drained{0};
  const auto body = [&](Session& session) -> absl::Status {
    for (;;) {
      absl::Status status = [&]() -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(const StepInfo info, session.BeginStep({.learning_rate = 0.01}));
        if (info.recovered.has_value()) {
          EXPECT_EQ(info.recovered->step, 1);
          drained += info.recovered->drain ? 1 : 0;
          return session.Finish();  // without the step that was begun
        }
        TESSERA_ASSIGN_OR_RETURN(const StepResult result, ToyRestOfStep(session, info));
        EXPECT_TRUE(result.drain);
        return session.Finish();
      }();
      if (!GenerationEnded(status)) return status;
    }
  };
  ExpectOk(RunMortalRanks(JobOf({"slots", 2}), 2, {{.rank = 1, .point = "optimizer", .step = 1}},
                          body, options));
  EXPECT_EQ(drained, 2);
}

TEST(RecoveryTest, GradientsThatWereKeptAreKeptAgain) {
  for (const char* unshard : {"slots", "resident"}) {
    v1::JobSpec job = ToyJob(unshard);
    job.set_steps(3);
    job.mutable_memory()->set_accumulate_unsynchronized(true);
    std::map<int, ToyValues> values[2];
    Mutex mutex;
    const auto run = [&](int which, const std::vector<Death>& deaths) {
      int died = 0;
      const auto body = [&](Session& session) -> absl::Status {
        for (;;) {
          absl::Status status = [&]() -> absl::Status {
            while (true) {
              TESSERA_ASSIGN_OR_RETURN(const StepInfo info,
                                       session.BeginStep({.learning_rate = 0.01}));
              if (info.step > 3) break;
              TESSERA_RETURN_IF_ERROR(ToyRestOfStep(session, info, 3).status());
            }
            TESSERA_RETURN_IF_ERROR(session.Barrier("the third step"));
            return absl::OkStatus();
          }();
          if (GenerationEnded(status)) continue;
          TESSERA_RETURN_IF_ERROR(status);
          // What leaves a step that nobody wants.
          TESSERA_ASSIGN_OR_RETURN(ToyValues all, ToySummonAll(session));
          {
            MutexLock lock(mutex);
            values[which][session.rank()] = std::move(all);
          }
          return session.Finish();
        }
      };
      ExpectOk(RunMortalRanks(job, 2, deaths, body, {.died = &died}));
      EXPECT_EQ(died, static_cast<int>(deaths.size())) << unshard;
    };
    run(0, {});
    run(1, {{.rank = 0, .point = "lease_release", .step = 2, .passage = 8}});
    EXPECT_EQ(values[0], values[1]) << unshard;
  }
}

// "fqn" -> hash, of the job's newest whole checkpoint, and its step.
std::pair<int64_t, std::map<std::string, std::string>> NewestIn(const std::string& dir) {
  const absl::StatusOr<FoundCheckpoints> found = FindCheckpoints(dir);
  EXPECT_TRUE(found.ok() && !found->whole.empty()) << found.status();
  if (!found.ok() || found->whole.empty()) return {};
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(found->whole.front().path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  const absl::StatusOr<v1::CheckpointHashes> all = HashCheckpoint(*reader);
  EXPECT_TRUE(all.ok()) << all.status();
  std::map<std::string, std::string> hashes;
  for (const v1::ParameterHash& hash : all->parameters()) {
    hashes[hash.fqn()] = hash.sha256();
    for (int i = 0; i < hash.optimizer_sha256_size(); ++i)
      hashes[absl::StrCat(hash.fqn(), " ", i)] = hash.optimizer_sha256(i);
  }
  return {reader->index().step(), hashes};
}

TEST(RecoveryTest, ACheckpointThatWasBeingWrittenIsSavedAgain) {
  const auto run = [](const std::string& name, const std::vector<Death>& deaths) {
    v1::JobSpec job = JobOf({"slots", 2});
    const std::string dir = absl::StrCat(testing::TempDir(), "/recovery_", name);
    std::filesystem::remove_all(dir);
    std::filesystem::create_directories(dir);
    job.mutable_checkpoint()->set_dir(dir);
    job.mutable_checkpoint()->set_every(2);
    job.mutable_checkpoint()->set_export_(false);
    Trace trace;
    int died = 0;
    ExpectOk(RunMortalRanks(job, 2, deaths, [&](Session& session) { return Train(session, trace); },
                            {.died = &died}));
    EXPECT_EQ(died, static_cast<int>(deaths.size())) << name;
    return NewestIn(dir);
  };
  const auto expected = run("undisturbed", {});
  EXPECT_EQ(expected.first, kSteps);
  EXPECT_GT(expected.second.size(), 10u);
  for (const char* point : {"checkpoint_write", "checkpoint_written", "checkpoint_index",
                            "checkpoint_rename", "checkpoint_renamed"}) {
    for (const int64_t step : {2, 4})
      EXPECT_EQ(run(point, {{.rank = 0, .point = point, .step = step}}), expected) << point << step;
  }
  EXPECT_EQ(run("rank_1", {{.rank = 1, .point = "checkpoint_write", .step = 2}}), expected);
}

}  // namespace
}  // namespace tessera
