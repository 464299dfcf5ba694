// What is gathered ahead, and when: by the order of the steps, by lists, and before or after a
// backward computes. What one rank's collectives are asked for is held against what was worked out.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"
#include "worker/prefetch_lists.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kRoot = kToyBlocks;

std::string Name(int unit) { return unit == kRoot ? "root" : absl::StrCat("h", unit); }

// Passes everything on, and writes down gathers (g:) and reductions (r:).
class RecordingCollectives final : public Collectives {
 public:
  RecordingCollectives(std::unique_ptr<Collectives> to, std::vector<std::string>* log)
      : to_(std::move(to)), log_(log) {}

  const Group& group() const override { return to_->group(); }
  void* Unsharded(int slot) override { return to_->Unsharded(slot); }
  void* Gradient(int slot) override { return to_->Gradient(slot); }
  absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream* stream,
                                  OpTiming* timing) override {
    log_->push_back("g:" + Name(op.unit));
    return to_->AllGather(op, stream, timing);
  }
  void ReleaseUnsharded(int slot) override { to_->ReleaseUnsharded(slot); }
  void PublishShard(int unit) override { to_->PublishShard(unit); }
  absl::StatusOr<Event> AcquireGradient(int unit, int slot, Stream* stream) override {
    return to_->AcquireGradient(unit, slot, stream);
  }
  absl::Status ZeroGradient(int slot, int64_t offset, int64_t bytes, Stream* stream) override {
    return to_->ZeroGradient(slot, offset, bytes, stream);
  }
  absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                      OpTiming* timing) override {
    log_->push_back("r:" + Name(op.unit));
    return to_->ReduceScatter(op, stream, timing);
  }
  absl::StatusOr<Event> SumReplicas(int unit, int slot, const ShardSpan& shard,
                                    Stream* stream) override {
    return to_->SumReplicas(unit, slot, shard, stream);
  }
  void Reshard(int slot, int reshard_slot, int group, int64_t bytes) override {
    to_->Reshard(slot, reshard_slot, group, bytes);
  }
  absl::Status GatherShards(int unit, int slot, const ShardSpan& shard, char* whole) override {
    return to_->GatherShards(unit, slot, shard, whole);
  }
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                    absl::string_view what) override {
    return to_->Exchange(payload, what);
  }
  absl::Status Progress() override { return to_->Progress(); }
  void Abort(const absl::Status& status) override { to_->Abort(status); }
  void Interrupt(const absl::Status& status) override { to_->Interrupt(status); }

 private:
  const std::unique_ptr<Collectives> to_;
  std::vector<std::string>* const log_;
};

// A forward (f:) through root, h0, h1, h2 and a backward (b:) through h2, h1, h0.
absl::Status Step(Session& session, std::vector<std::string>* log) {
  TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  TESSERA_ASSIGN_OR_RETURN(const UnitLease root, session.Unshard(kRoot, Phase::kForward));
  log->push_back("f:root");
  for (int block = 0; block < kToyBlocks; ++block) {
    TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(block, Phase::kForward));
    log->push_back("f:" + Name(block));
  }
  for (int block = kToyBlocks - 1; block >= 0; --block) {
    {
      TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(block, Phase::kBackward));
      log->push_back("b:" + Name(block));
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(block));
  }
  return session.Reduce(kRoot);
}

// What rank 0 does in its second step, at 2 ranks. `prepare` comes before the first.
std::string SecondStep(const std::string& unshard, const std::string& backward,
                       const std::function<absl::Status(Session&)>& prepare = nullptr,
                       int prefetch = 1) {
  v1::JobSpec job = ToyJob(unshard);
  job.mutable_memory()->set_prefetch(prefetch);
  job.mutable_memory()->set_backward_prefetch(backward);
  std::vector<std::vector<std::string>> logs(2);
  ThreadRanks::Options options;
  options.wrap = [&](int rank, std::unique_ptr<Collectives> collectives) {
    return std::make_unique<RecordingCollectives>(std::move(collectives), &logs[rank]);
  };
  const auto ranks = ThreadRanks::Create(job, 2, options);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([&](Session& session) -> absl::Status {
    if (prepare != nullptr) TESSERA_RETURN_IF_ERROR(prepare(session));
    for (int step = 0; step < 2; ++step) {
      logs[session.rank()].clear();
      TESSERA_RETURN_IF_ERROR(Step(session, &logs[session.rank()]));
      TESSERA_RETURN_IF_ERROR(session.EndStep({}).status());
    }
    const std::vector<std::string> log = logs[session.rank()];
    TESSERA_RETURN_IF_ERROR(session.Finish());
    logs[session.rank()] = log;
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(logs[0], logs[1]);
  return absl::StrJoin(logs[0], " ");
}

constexpr char kForward[] = "g:root g:h0 f:root g:h1 f:h0 g:h2 f:h1 f:h2 ";

TEST(PrefetchTest, PreGathersTheNextBeforeABackwardComputes) {
  EXPECT_EQ(SecondStep("slots", "pre"),
            absl::StrCat(kForward, "g:h1 b:h2 r:h2 g:h0 b:h1 r:h1 b:h0 r:h0 r:root"));
}

TEST(PrefetchTest, PostGathersItBeforeTheReductionAndNoneWhenItIsNeeded) {
  EXPECT_EQ(SecondStep("slots", "post"),
            absl::StrCat(kForward, "b:h2 g:h1 r:h2 b:h1 g:h0 r:h1 b:h0 r:h0 r:root"));
  EXPECT_EQ(SecondStep("slots", "none"),
            absl::StrCat(kForward, "b:h2 r:h2 g:h1 b:h1 r:h1 g:h0 b:h0 r:h0 r:root"));
}

TEST(PrefetchTest, ListsTakeThePlaceOfTheOrder) {
  const auto prepare = [](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(SetPrefetch(session, kRoot, Phase::kForward, {}));
    TESSERA_RETURN_IF_ERROR(SetPrefetch(session, 0, Phase::kForward, {2, 1}));
    return SetPrefetch(session, 2, Phase::kBackward, {0});
  };
  // Of {2, 1} one fits; h1 is gathered when it is needed, and so it is after h2's backward.
  EXPECT_EQ(SecondStep("slots", "pre", prepare),
            "g:root f:root g:h0 g:h2 f:h0 g:h1 f:h1 f:h2 g:h0 b:h2 r:h2 g:h1 b:h1 r:h1 b:h0 r:h0 "
            "r:root");
  EXPECT_EQ(
      SecondStep("slots", "pre", prepare, 2),
      "g:root f:root g:h0 g:h2 g:h1 f:h0 f:h1 g:h1 f:h2 g:h0 b:h2 r:h2 b:h1 r:h1 b:h0 r:h0 r:root");
}

// Resident units are whole already: gathering is a barrier, and comes when it is needed.
TEST(PrefetchTest, NothingIsGatheredAheadWhereUnitsAreResident) {
  const auto prepare = [](Session& session) {
    return SetPrefetch(session, 0, Phase::kForward, {2, 1});
  };
  EXPECT_EQ(SecondStep("resident", "pre", prepare),
            "g:root f:root g:h0 f:h0 g:h1 f:h1 g:h2 f:h2 g:h2 b:h2 r:h2 g:h1 b:h1 r:h1 g:h0 b:h0 "
            "r:h0 r:root");
}

TEST(PrefetchRulesTest, WrongListsAreNamed) {
  const auto ranks = ThreadRanks::Create(ToyJob("slots"), 1, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const auto statuses = (*ranks)->Run([](Session& session) -> absl::Status {
    EXPECT_THAT(std::string(SetPrefetch(session, 0, Phase::kForward, {1, 4}).message()),
                HasSubstr("names unit 4; the plan has units 0 to 3"));
    EXPECT_THAT(std::string(SetPrefetch(session, 0, Phase::kEval, {1}).message()),
                HasSubstr("call Session::Prefetch"));
    TESSERA_RETURN_IF_ERROR(session.BeginStep({}).status());
    return SetPrefetch(session, 0, Phase::kForward, {1});
  });
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("SetPrefetch inside a step"));
}

}  // namespace
}  // namespace tessera
