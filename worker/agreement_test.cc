#include "worker/agreement.h"

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/mutex.h"
#include "gtest/gtest.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// What one rank holds.
struct Held {
  std::vector<v1::Unit> units;
  v1::Layout layout;
  std::vector<v1::UnitLayout> layouts;
  v1::JobSpec spec;
};

Held Example() {
  Held held;
  for (const char* fqn : {"h.0", "h.1", "h.2", ""}) {
    v1::Unit& unit = held.units.emplace_back();
    unit.set_fqn(fqn);
    unit.set_class_name("Block");
    unit.set_numel(12);
    unit.set_original_dtype(v1::FLOAT32);
    unit.set_param_dtype(v1::BFLOAT16);
    unit.set_reduce_dtype(v1::FLOAT32);
    v1::UnitParameter* parameter = unit.add_parameters();
    parameter->set_fqn(absl::StrCat(fqn, ".weight"));
    parameter->add_shape(3);
    parameter->add_shape(4);
    parameter->set_numel(12);
    parameter->set_requires_grad(true);
    v1::UnitLayout& layout = held.layouts.emplace_back();
    layout.set_fqn(fqn);
    layout.set_padded_numel(16);
    layout.set_shard_numel(4);
    layout.add_parameters()->set_fqn(parameter->fqn());
  }
  held.layout.set_world_size(4);
  held.layout.set_shard_count(4);
  held.layout.set_replica_count(1);
  held.layout.set_prefetch(1);
  held.spec.set_name("gpt");
  held.spec.set_seed(1);
  held.spec.set_global_batch(24);
  held.spec.mutable_optimizer()->set_lr(0.001);
  held.spec.mutable_optimizer()->add_betas(0.9);
  held.spec.mutable_optimizer()->add_betas(0.95);
  held.spec.mutable_mesh()->set_strategy("full_shard");
  held.spec.mutable_model()->set_builtin("gpt");
  return held;
}

// Ranks as threads that exchange with each other.
class Meeting {
 public:
  explicit Meeting(int ranks) : payloads_(ranks) {}

  std::vector<std::string> Exchange(int rank, absl::string_view payload) {
    MutexLock lock(mutex_);
    payloads_[rank] = std::string(payload);
    const int round = rounds_;
    if (++arrived_ == static_cast<int>(payloads_.size())) {
      arrived_ = 0;
      ++rounds_;
      last_ = payloads_;
      changed_.NotifyAll();
    }
    while (rounds_ == round) changed_.Wait(lock);
    return last_;
  }
  int rounds() {
    MutexLock lock(mutex_);
    return rounds_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> payloads_;
  std::vector<std::string> last_;
  int arrived_ = 0;
  int rounds_ = 0;
};

struct Outcome {
  std::vector<absl::Status> statuses;
  int exchanges = 0;
};

Outcome Agree(const std::vector<Held>& ranks) {
  Outcome outcome;
  outcome.statuses.resize(ranks.size());
  Meeting meeting(static_cast<int>(ranks.size()));
  {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const Held& held = ranks[rank];
        const Agreement agreement(AgreementText(held.units, held.layout, held.layouts, held.spec));
        outcome.statuses[rank] =
            agreement.Check([&](absl::string_view payload,
                                absl::string_view) -> absl::StatusOr<std::vector<std::string>> {
              EXPECT_LE(payload.size(), 128u);
              return meeting.Exchange(static_cast<int>(rank), payload);
            });
      });
    }
  }
  outcome.exchanges = meeting.rounds();
  return outcome;
}

// Four ranks, of which rank 2 was changed.
Outcome WithRank2(const std::function<void(Held&)>& change) {
  std::vector<Held> ranks(4, Example());
  change(ranks[2]);
  return Agree(ranks);
}

void ExpectAll(const Outcome& outcome, const std::string& message, int blamed) {
  for (const absl::Status& status : outcome.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Reason(status), "RANKS_DISAGREE");
    EXPECT_EQ(status.message(),
              absl::StrCat("ranks disagree on ", message,
                           "; run the same build with the same job on every host"));
    EXPECT_EQ(BlamedRank(status), blamed < 0 ? std::nullopt : std::optional<int>(blamed));
  }
}

TEST(AgreementTest, OneExchangeWhereAllHoldTheSame) {
  const Outcome outcome = Agree(std::vector<Held>(4, Example()));
  for (const absl::Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(outcome.exchanges, 1);
}

TEST(AgreementTest, NamesUnitFieldAndRanks) {
  ExpectAll(WithRank2([](Held& held) { held.units[1].set_reduce_dtype(v1::BFLOAT16); }),
            "the plan, in unit h.1: ranks 0-1, 3 have \"reduce_dtype float32\", rank 2 has "
            "\"reduce_dtype bfloat16\"",
            2);
}

TEST(AgreementTest, NamesTheFirstDifferenceOfMany) {
  ExpectAll(WithRank2([](Held& held) {
              held.units[2].set_param_dtype(v1::FLOAT16);
              held.units[3].set_param_dtype(v1::FLOAT16);
              held.spec.set_seed(2);
            }),
            "the plan, in unit h.2: ranks 0-1, 3 have \"param_dtype bfloat16\", rank 2 has "
            "\"param_dtype float16\"",
            2);
}

TEST(AgreementTest, NamesUnitsInAnotherOrder) {
  ExpectAll(WithRank2([](Held& held) { std::swap(held.units[0], held.units[1]); }),
            "the plan: ranks 0-1, 3 have \"unit h.0\", rank 2 has \"unit h.1\"", 2);
}

TEST(AgreementTest, NamesADifferenceOfTheLayout) {
  ExpectAll(WithRank2([](Held& held) { held.layouts[1].set_shard_numel(8); }),
            "the layout, in unit h.1: ranks 0-1, 3 have \"shard_numel 4\", rank 2 has "
            "\"shard_numel 8\"",
            2);
}

TEST(AgreementTest, NamesADifferenceOfTheSettings) {
  ExpectAll(WithRank2([](Held& held) { held.spec.mutable_optimizer()->set_betas(1, 0.999); }),
            "the job's settings: ranks 0-1, 3 have \"setting optimizer.betas[1] "
            "0.94999999999999996\", rank 2 has \"setting optimizer.betas[1] 0.999\"",
            2);
}

// The model is in the plan already, and may be large.
TEST(AgreementTest, DoesNotCompareTheModel) {
  const Outcome outcome =
      WithRank2([](Held& held) { held.spec.mutable_model()->set_builtin("other"); });
  for (const absl::Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status;
}

// One that has a unit less ends earlier.
TEST(AgreementTest, NamesWhatARankDoesNotHave) {
  ExpectAll(
      WithRank2([](Held& held) { held.spec.mutable_mesh()->Clear(); }),
      "the job's settings: ranks 0-1, 3 have \"setting mesh.strategy full_shard\", rank 2 has "
      "\"nothing\"",
      2);
}

TEST(AgreementTest, OfTwoRanksNeitherIsToBlame) {
  std::vector<Held> ranks(2, Example());
  ranks[1].units[0].set_param_dtype(v1::FLOAT32);
  ExpectAll(Agree(ranks),
            "the plan, in unit h.0: rank 0 has \"param_dtype bfloat16\", rank 1 has \"param_dtype "
            "float32\"",
            -1);
}

TEST(AgreementTest, ShowsTheEndOfALongLine) {
  const std::string common(300, 'x');
  std::vector<Held> ranks(3, Example());
  for (Held& held : ranks) held.spec.set_name(common + "a");
  ranks[0].spec.set_name(common + "b");
  const Outcome outcome = Agree(ranks);
  EXPECT_TRUE(absl::StrContains(outcome.statuses[1].message(), "xxxa\""));
  EXPECT_TRUE(absl::StrContains(outcome.statuses[1].message(), "xxxb\""));
  EXPECT_EQ(BlamedRank(outcome.statuses[1]), 0);
}

// 4,000 units of 12 lines each: the search stays short.
TEST(AgreementTest, FindsOneLineAmongManyInFewExchanges) {
  std::vector<Held> ranks(2, Example());
  for (Held& held : ranks) {
    for (int i = 0; i < 4000; ++i) {
      held.units.insert(held.units.begin(), held.units[0]);
      held.units[0].set_fqn(absl::StrCat("x.", i));
    }
  }
  ranks[1].units[1000].set_numel(13);
  const Outcome outcome = Agree(ranks);
  EXPECT_TRUE(absl::StrContains(outcome.statuses[0].message(),
                                "the plan, in unit x.2999: rank 0 has \"numel 12\""))
      << outcome.statuses[0];
  EXPECT_LE(outcome.exchanges, 20);
}

TEST(AgreementTest, AFailedExchangeEndsIt) {
  const Held held = Example();
  const Agreement agreement(AgreementText(held.units, held.layout, held.layouts, held.spec));
  const absl::Status status = agreement.Check(
      [](absl::string_view, absl::string_view what) -> absl::StatusOr<std::vector<std::string>> {
        return absl::DeadlineExceededError(absl::StrCat("waited 3s for ", what));
      });
  EXPECT_EQ(status.message(), "waited 3s for every rank to say which plan it holds");
}

TEST(AgreementTest, FingerprintsFollowTheText) {
  EXPECT_EQ(Agreement("a\nb\n").fingerprint(), Agreement("a\nb\n").fingerprint());
  EXPECT_NE(Agreement("a\nb\n").fingerprint(), Agreement("a\nc\n").fingerprint());
  EXPECT_NE(Agreement("a\n").fingerprint(), 0u);
}

}  // namespace
}  // namespace tessera
