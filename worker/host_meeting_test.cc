#include "worker/host_meeting.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// What the coordinator does with ids: gives them to whoever asks, and says so when it has none.
class Board {
 public:
  void Publish(int group, v1::CommunicatorIds ids) {
    MutexLock lock(mutex_);
    ids_[group] = std::move(ids);
  }
  absl::StatusOr<v1::CommunicatorIds> Fetch(int group) {
    MutexLock lock(mutex_);
    const auto found = ids_.find(group);
    if (found == ids_.end()) return absl::DeadlineExceededError("nothing published yet");
    return found->second;
  }

 private:
  Mutex mutex_;
  std::map<int, v1::CommunicatorIds> ids_ ABSL_GUARDED_BY(mutex_);
};

class Line final : public MembershipClient {
 public:
  explicit Line(Board* board) : board_(board) {}
  absl::Status JoinRank(const v1::JoinRank&, absl::Duration,
                        std::function<void(const absl::Status&)>) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<PlannedUnits> ListUnits(const std::string&, int64_t, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  absl::Status PublishCommunicatorIds(const v1::PublishCommunicatorIdsRequest& request,
                                      absl::Duration) override {
    EXPECT_EQ(request.job(), "gpt");
    EXPECT_EQ(request.generation(), 3);
    EXPECT_EQ(request.incarnation(), "mine");
    EXPECT_EQ(request.group(), 2 + request.rank());
    board_->Publish(request.group(), request.ids());
    return absl::OkStatus();
  }
  absl::StatusOr<v1::CommunicatorIds> FetchCommunicatorIds(
      const v1::FetchCommunicatorIdsRequest& request, absl::Duration) override {
    return board_->Fetch(request.group());
  }
  absl::Status AwaitStart(int64_t, int64_t, absl::Duration) override {
    return absl::UnimplementedError("");
  }
  void Interrupt(const absl::Status&) override {}
  void ReportStats(v1::ReportStatsRequest) override {}
  void Leave(const absl::Status&, std::optional<int>, absl::Duration) override {}

 private:
  Board* const board_;
};

// Of the second rank of host `host` of two, with two ranks each.
v1::AgentHello Hello(int host, int64_t form_seconds = 60) {
  v1::AgentHello hello;
  hello.set_incarnation("mine");
  hello.set_host(host);
  hello.add_host_names("a");
  hello.add_host_names("b");
  hello.set_host_address("127.0.0.1");
  hello.mutable_assignment()->set_job("gpt");
  hello.mutable_assignment()->set_generation(3);
  hello.mutable_assignment()->set_rank(2 * host + 1);
  hello.mutable_assignment()->set_local_rank_start(2 * host);
  hello.mutable_assignment()->set_local_world_size(2);
  hello.mutable_layout()->set_replica_count(2);
  hello.mutable_layout()->set_gradient_stride_bytes(4096 + 1'052'672);
  hello.mutable_layout()->set_staging_bytes(1'048'576 + 12);
  hello.mutable_spec()->mutable_timeouts()->mutable_collective()->set_seconds(30);
  hello.mutable_spec()->mutable_timeouts()->mutable_form()->set_seconds(form_seconds);
  return hello;
}

TEST(HostMeetingTest, RanksOfEqualLocalRankMeetAndTalk) {
  Board board;
  std::vector<std::vector<char>> gradients(2, std::vector<char>(2 * (4096 + 1'052'672)));
  std::vector<std::jthread> threads;
  for (int host = 0; host < 2; ++host) {
    threads.emplace_back([&, host] {
      Line line(&board);
      const v1::AgentHello hello = Hello(host);
      const auto links = MeetHosts(hello, absl::MakeSpan(gradients[host]), &line);
      ASSERT_TRUE(links.ok()) << links.status();
      const absl::Span<char> sum = SumStaging(hello, absl::MakeSpan(gradients[host]));
      // At the end of the second rank's part, before what fills the page.
      ASSERT_EQ(sum.size(), 12u);
      EXPECT_EQ(sum.data() - gradients[host].data(), 2 * 4096 + 1'052'672 + 1'048'576);
      auto* values = reinterpret_cast<float*>(sum.data());
      for (int i = 0; i < 3; ++i) values[i] = static_cast<float>(host + i);
      const HostLinks::Ticket ticket = (*links)->StartSum(absl::MakeSpan(values, 3), "a sum");
      while (!(*links)->Done(ticket).value_or(true)) std::this_thread::yield();
      EXPECT_EQ(values[0], 1);
      EXPECT_EQ(values[2], 5);
    });
  }
}

TEST(HostMeetingTest, AJobOnOneHostHasNobodyToMeet) {
  v1::AgentHello hello = Hello(0);
  hello.clear_host_names();
  const auto links = MeetHosts(hello, {}, nullptr);
  ASSERT_TRUE(links.ok());
  EXPECT_EQ(*links, nullptr);
  EXPECT_TRUE(SumStaging(hello, {}).empty());
}

TEST(HostMeetingTest, AHostThatDoesNotSayWhereItListensIsNamed) {
  Board board;
  Line line(&board);
  std::vector<char> gradients(2 * (4096 + 1'052'672));
  const absl::Status status =
      MeetHosts(Hello(0, /*form_seconds=*/0), absl::MakeSpan(gradients), &line).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "rank 3 on host b did not say where it listens: nothing published yet");
  EXPECT_EQ(BlamedRank(status), 3);
}

}  // namespace
}  // namespace tessera
