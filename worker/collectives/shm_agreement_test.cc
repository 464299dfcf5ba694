// What ranks of a host see of each other beside the bytes: who holds another plan, who is late, and
// where each waits.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/control_file.h"
#include "common/errors.h"
#include "gtest/gtest.h"
#include "worker/blame.h"
#include "worker/collectives/shm_collectives.h"

namespace tessera {
namespace {

constexpr int64_t kShard = 4;
constexpr int64_t kSlotBytes = 64;
constexpr absl::Duration kLong = absl::Seconds(60);

// Two ranks of one host, each with a fingerprint and a publisher.
class Pair {
 public:
  explicit Pair(uint64_t first, uint64_t second, absl::Duration timeout = kLong)
      : control_(ControlFileBytes(2, 0, 1) / 8), gradients_(2 * kSlotBytes) {
    const uint64_t fingerprints[] = {first, second};
    v1::Layout layout;
    layout.set_gradient_stride_bytes(kSlotBytes);
    layout.add_gradient_slots()->set_bytes(kSlotBytes);
    for (int rank = 0; rank < 2; ++rank) {
      ShmCollectives::Options options;
      options.group.ranks = {0, 1};
      options.group.index = rank;
      options.group.hosts = {0, 0};
      options.sync.control = control_.data();
      options.sync.local_world_size = 2;
      options.sync.local_rank = rank;
      options.sync.gradient_slots = 1;
      options.sync.timeout = timeout;
      options.gradients = gradients_.data();
      options.layout = layout;
      options.unit_names = {"h.0"};
      options.fingerprint = fingerprints[rank];
      options.position = &positions_[rank];
      ranks_.push_back(std::make_unique<ShmCollectives>(std::move(options)));
    }
  }

  ShmCollectives& rank(int rank) { return *ranks_[rank]; }
  const PositionPublisher& position(int rank) { return positions_[rank]; }

  // A reduction of unit h.0, to its end.
  absl::Status Reduce(int rank) {
    const auto acquired = ranks_[rank]->AcquireGradient(0, 0, nullptr);
    if (absl::Status status = acquired->Wait(); !status.ok()) return status;
    ReduceScatterOp op;
    op.shard = FloatShard(absl::MakeSpan(shards_[rank]));
    const auto reduced = ranks_[rank]->ReduceScatter(op, nullptr, nullptr);
    return reduced->Wait();
  }

 private:
  std::vector<uint64_t> control_;
  std::vector<char> gradients_;
  std::vector<float> shards_[2] = {std::vector<float>(kShard), std::vector<float>(kShard)};
  PositionPublisher positions_[2];
  std::vector<std::unique_ptr<ShmCollectives>> ranks_;
};

// What `one` does on each rank, at once.
template <typename One>
std::vector<absl::Status> OnBoth(One one) {
  std::vector<absl::Status> statuses(2);
  {
    std::jthread other([&] { statuses[1] = one(1); });
    statuses[0] = one(0);
  }
  return statuses;
}

TEST(ShmAgreementTest, ARankWithAnotherPlanIsRefusedInTheFirstOperation) {
  Pair ranks(0x11, 0x22);
  for (const absl::Status& status : OnBoth([&](int rank) { return ranks.Reduce(rank); })) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(Reason(status), "RANKS_DISAGREE");
    EXPECT_TRUE(absl::StartsWith(status.message(), "ranks disagree on the plan: rank ")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 0 holds 0000000000000011")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 holds 0000000000000022")) << status;
  }
}

TEST(ShmAgreementTest, RanksWithOnePlanGoOnAndWhoHasNoneIsNotCompared) {
  for (const uint64_t second : {0x11, 0}) {
    Pair ranks(0x11, second);
    for (const absl::Status& status : OnBoth([&](int rank) { return ranks.Reduce(rank); }))
      EXPECT_TRUE(status.ok()) << status;
  }
}

// In which they find out what differs.
TEST(ShmAgreementTest, RanksWithOtherPlansStillExchange) {
  Pair ranks(0x11, 0x22);
  for (const absl::Status& status :
       OnBoth([&](int rank) { return ranks.rank(rank).Exchange("x", "a vote").status(); }))
    EXPECT_TRUE(status.ok()) << status;
}

TEST(ShmAgreementTest, ADeadlineSaysWhatTheMissingRankHasIssuedLast) {
  Pair ranks(0, 0, absl::Milliseconds(50));
  ASSERT_TRUE(
      OnBoth([&](int rank) { return ranks.rank(rank).Exchange("x", "a vote").status(); })[0].ok());
  const absl::Status status = ranks.Reduce(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "waited 50ms for reduce of unit h.0; missing: rank 1; the last operation of rank 1 is "
            "1, an exchange between all ranks; this one is 2");
  EXPECT_EQ(BlamedRank(status), 1);
  const absl::Status vote =
      Pair(0, 0, absl::Milliseconds(50)).rank(1).Exchange("", "a vote").status();
  EXPECT_EQ(vote.message(),
            "waited 50ms for a vote; missing: rank 0; the last operation of rank 0 is none; this "
            "one is 1");
  EXPECT_EQ(BlamedRank(vote), 0);
}

// Rank 1 comes when rank 0 says that it waits for it.
TEST(ShmAgreementTest, AWaitingRankSaysWhereItWaits) {
  Pair ranks(0, 0);
  v1::Position seen;
  const auto statuses = OnBoth([&](int rank) {
    const absl::Time deadline = Clock::Real()->Now() + kLong;
    while (rank == 1 && seen.activity() != v1::WAITING && Clock::Real()->Now() < deadline)
      seen = ranks.position(0).Read();
    return ranks.rank(rank).Exchange("x", "the commit vote of step 3").status();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen.what(), "the commit vote of step 3");
  EXPECT_EQ(seen.unit(), -1);
  EXPECT_EQ(seen.sequence(), 1);
  EXPECT_EQ(ranks.position(0).Read().activity(), v1::COMPUTING);
  EXPECT_EQ(ranks.position(1).Read().sequence(), 1);
}

// What it says last is where it gave up, also after its calls have returned.
TEST(ShmAgreementTest, TheUnitAndOperationOfAFailedWaitStay) {
  Pair ranks(0, 0, absl::Milliseconds(50));
  EXPECT_FALSE(ranks.Reduce(0).ok());
  const v1::Position last = ranks.position(0).Read();
  EXPECT_EQ(last.activity(), v1::WAITING);
  EXPECT_EQ(last.unit(), 0);
  EXPECT_EQ(last.operation(), v1::REDUCE);
  EXPECT_EQ(last.sequence(), 1);
}

}  // namespace
}  // namespace tessera
