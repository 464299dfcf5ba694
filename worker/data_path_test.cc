// How a rank takes its GPU: who says the ids, and what is left when a call fails.
#include "worker/data_path.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/blame.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/device/fake_cuda_api.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The coordinator's side of the rendezvous; nothing else is called.
class Line final : public MembershipClient {
 public:
  absl::Status JoinRank(const v1::JoinRank&, absl::Duration,
                        std::function<void(const absl::Status&)>) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<PlannedUnits> ListUnits(const std::string&, int64_t, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request,
                                      absl::Duration timeout) override {
    published.push_back(request);
    timeouts.push_back(timeout);
    return status;
  }
  absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(
      const v1::FetchCommunicatorIdsRequest& request, absl::Duration timeout) override {
    fetched.push_back(request);
    timeouts.push_back(timeout);
    if (!status.ok()) return status;
    return ids;
  }
  absl::Status AwaitStart(int64_t, int64_t, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  void Interrupt(const absl::Status&) override {}
  void ReportStats(v1::ReportStatsRequest) override {}
  void Leave(const absl::Status&, std::optional<int>, absl::Duration) override {}

  absl::Status status;  // of every answer
  v1::CommunicatorIds ids;
  std::vector<v1::PublishCommunicatorIdsRequest> published;
  std::vector<v1::FetchCommunicatorIdsRequest> fetched;
  std::vector<absl::Duration> timeouts;
};

// Rank 6 + `index` of a shard group of `ranks`, the second one of its job.
struct Rank {
  std::vector<uint64_t> control;
  std::vector<char> file = std::vector<char>(4096);
  SessionParts parts;
  Line* line = nullptr;
  Collectives* host = nullptr;

  Rank(int index, int ranks) : control(ControlFileBytes(ranks, 0, 0) / 8) {
    parts.assignment.set_job("gpt");
    parts.assignment.set_generation(3);
    parts.assignment.set_rank(6 + index);
    parts.assignment.set_replica_index(1);
    parts.incarnation = "this process";
    parts.spec.mutable_timeouts()->mutable_collective()->set_seconds(7);
    parts.layout.set_device(v1::CUDA);
    parts.layout.set_unshard_mode(v1::SLOTS);
    parts.layout.add_unsharded_slots()->set_bytes(512);
    parts.layout.add_gradient_slots()->set_bytes(512);
    ShmCollectives::Options options;
    for (int i = 0; i < ranks; ++i) options.group.ranks.push_back(6 + i);
    options.group.index = index;
    options.sync.control = control.data();
    options.sync.local_world_size = ranks;
    options.sync.local_rank = index;
    options.sync.first_rank = 6;
    parts.collectives = std::make_unique<ShmCollectives>(std::move(options));
    host = parts.collectives.get();
    auto owned = std::make_unique<Line>();
    line = owned.get();
    parts.membership = std::move(owned);
  }

  absl::Status Take(FakeCuda& fake) {
    return TakeGpu(fake.api(), /*gpu=*/0, absl::MakeSpan(file), parts);
  }
};

TEST(DataPathTest, TheFirstRankPublishesTwoIdsOfItsGroup) {
  FakeCuda fake;
  {
    Rank rank(0, 1);
    ASSERT_TRUE(rank.Take(fake).ok());
    EXPECT_THAT(rank.line->fetched, IsEmpty());
    ASSERT_EQ(rank.line->published.size(), 1u);
    const v1::PublishCommunicatorIdsRequest& request = rank.line->published[0];
    EXPECT_EQ(request.job(), "gpt");
    EXPECT_EQ(request.generation(), 3);
    EXPECT_EQ(request.rank(), 6);
    EXPECT_EQ(request.incarnation(), "this process");
    EXPECT_EQ(request.group(), 1);
    EXPECT_EQ(request.ids().unshard_id().size(), 128u);
    EXPECT_EQ(request.ids().reduce_id().size(), 128u);
    EXPECT_NE(request.ids().unshard_id(), request.ids().reduce_id());
    EXPECT_EQ(rank.line->timeouts[0], absl::Seconds(7));
    // The host's stay below NCCL's.
    EXPECT_EQ(rank.parts.host_collectives.get(), rank.host);
    EXPECT_NE(rank.parts.collectives.get(), rank.host);
    EXPECT_NE(rank.parts.stream, nullptr);
    EXPECT_EQ(fake.allocated_bytes(), 2 * 4096);
  }
  EXPECT_EQ(fake.live(), 0);
  EXPECT_THAT(fake.violations(), IsEmpty());
}

TEST(DataPathTest, TheOthersFetchThemAndLeaveTheCoordinatorTheLastWord) {
  FakeCuda fake;
  Rank rank(1, 2);
  rank.line->status = absl::DeadlineExceededError("rank 6 had not published");
  const absl::Status late = rank.Take(fake);
  EXPECT_EQ(late.message(), "rank 6 had not published");
  EXPECT_EQ(BlamedRank(late), 6);
  ASSERT_EQ(rank.line->fetched.size(), 1u);
  EXPECT_EQ(rank.line->fetched[0].rank(), 7);
  EXPECT_EQ(rank.line->fetched[0].group(), 1);
  EXPECT_EQ(rank.line->fetched[0].incarnation(), "this process");
  EXPECT_GT(rank.line->timeouts[0], absl::Seconds(7));
  EXPECT_THAT(rank.line->published, IsEmpty());

  rank.line->status = absl::UnavailableError("the coordinator is gone");
  const absl::Status gone = rank.Take(fake);
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(BlamedRank(gone).has_value());
}

TEST(DataPathTest, IdsThatAreNoIdsAreRefused) {
  FakeCuda fake;
  Rank rank(1, 2);
  rank.line->ids.set_unshard_id(std::string(128, 'u'));
  rank.line->ids.set_reduce_id("short");
  EXPECT_EQ(rank.Take(fake).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(fake.live(), 0);
}

TEST(DataPathTest, EveryCallThatFailsIsNamedAndTheHostsCollectivesStay) {
  std::vector<std::string> calls;
  {
    FakeCuda fake;
    Rank rank(0, 1);
    ASSERT_TRUE(rank.Take(fake).ok());
    calls = fake.calls();
  }
  for (int number = 0; number < static_cast<int>(calls.size()); ++number) {
    SCOPED_TRACE(absl::StrCat(calls[number], ", call ", number));
    FakeCuda fake;
    {
      Rank rank(0, 1);
      fake.FailCall(number);
      const absl::Status status = rank.Take(fake);
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr(calls[number]));
      EXPECT_THAT(std::string(status.message()), HasSubstr("on GPU 0"));
      EXPECT_EQ(rank.parts.collectives.get(), rank.host);
      EXPECT_EQ(rank.parts.stream, nullptr);
      EXPECT_EQ(rank.line->published.size(), number < 2 ? 0u : 1u);
    }
    EXPECT_EQ(fake.live(), 0);
    EXPECT_THAT(fake.violations(), IsEmpty());
  }
  EXPECT_GT(calls.size(), 10u);
}

}  // namespace
}  // namespace tessera
