// A rank dies at each point of a step in turn, and another takes over its memory file: what comes
// of the job is bit for bit what would have come of it undisturbed.
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

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
    std::lock_guard lock(mutex_);
    const auto [seen, added] = norms_[rank].emplace(result.step, result.gradient_norm);
    EXPECT_EQ(seen->second, result.gradient_norm) << added << " " << rank << " " << result.step;
  }
  void SetValues(int rank, ToyValues values) {
    std::lock_guard lock(mutex_);
    values_[rank] = std::move(values);
  }
  void AddAttempt(int64_t step, int64_t attempt) {
    std::lock_guard lock(mutex_);
    attempts_[step] = std::max(attempts_[step], attempt);
  }

  // By rank; a rank that died knows only the steps since.
  std::map<int, std::map<int64_t, double>> norms_;
  std::map<int, ToyValues> values_;
  std::map<int64_t, int64_t> attempts_;

 private:
  std::mutex mutex_;
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

Trace& Undisturbed(const ToyWorld& world) {
  static auto* const kept = new std::map<std::string, Trace>();
  const std::string key = absl::StrCat(world.unshard, world.strategy, world.ranks);
  const bool made = kept->count(key) > 0;
  Trace& trace = (*kept)[key];
  if (!made) {
    ExpectOk(RunMortalRanks(ToyJobOf(world), world.ranks, {},
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
  ExpectOk(RunMortalRanks(
      ToyJobOf(world), world.ranks, deaths,
      [&](Session& session) { return Train(session, trace); }, &died));
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

class RecoveryPointTest : public testing::TestWithParam<Case> {};

TEST_P(RecoveryPointTest, EndsWithTheBitsOfAnUndisturbedRun) {
  ExpectUnharmed(GetParam().world, {GetParam().death});
}

INSTANTIATE_TEST_SUITE_P(Points, RecoveryPointTest, testing::ValuesIn(Cases()));

}  // namespace
}  // namespace tessera
