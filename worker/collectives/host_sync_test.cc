#include "worker/collectives/host_sync.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "worker/blame.h"

extern char** environ;

namespace tessera {
namespace {

struct alignas(4096) Page {
  char bytes[4096];
};

class HostSyncTest : public ::testing::Test {
 protected:
  HostSync::Options Options(int local_rank) {
    HostSync::Options options;
    options.control = control_.data();
    options.local_world_size = 2;
    options.local_rank = local_rank;
    options.first_rank = 4;
    options.unsharded_slots = 3;
    options.gradient_slots = 2;
    options.host_name = "alpha";
    return options;
  }

  // Waits for what never comes.
  static absl::Status WaitInVain(HostSync& sync) {
    return sync.WaitUntil([] { return false; }, [] { return std::string("godot"); },
                          [] { return std::vector<int>{5}; });
  }

  std::vector<Page> control_ = std::vector<Page>(3);
};

TEST_F(HostSyncTest, RecordsDoNotOverlapAndFillTheFile) {
  HostSync sync(Options(0));
  const char* base = control_[0].bytes;
  EXPECT_EQ(reinterpret_cast<const char*>(&sync.record(0)) - base, 4096);
  EXPECT_EQ(reinterpret_cast<const char*>(&sync.record(1)) - base, 8192);
  EXPECT_EQ(reinterpret_cast<const char*>(&sync.slot(0, 0)) - base, 4096 + 3072);
  EXPECT_EQ(reinterpret_cast<const char*>(&sync.slot(0, sync.gradient_slot(1))) - base,
            4096 + 3072 + 16 * 4);
  EXPECT_EQ(ControlFileBytes(2, 3, 2), 3 * 4096);
  EXPECT_EQ(ControlFileBytes(2, 40, 25),
            4096 + 2 * 8192);  // 65 slots do not fit beside the fixed part
}

TEST_F(HostSyncTest, AnnouncementWakesASleeper) {
  HostSync sleeper(Options(0)), waker(Options(1));
  std::atomic<uint64_t>& word = waker.slot(1, 0).entered;
  HostSync::Options options = Options(0);
  std::atomic<bool> parked = false;
  options.on_park = [&](bool now) {
    if (now) parked = true;
  };
  HostSync parking(options);
  std::jthread thread([&] {
    while (!parked) std::this_thread::yield();
    waker.Announce(word, 1);
  });
  EXPECT_TRUE(parking
                  .WaitUntil([&] { return word.load() == 1; }, [] { return std::string(); },
                             [] { return std::vector<int>(); })
                  .ok());
}

TEST_F(HostSyncTest, AbortEndsThePeersWaitAndSaysWho) {
  HostSync one(Options(0)), other(Options(1));
  other.Abort(absl::ResourceExhaustedError("no memory left"));
  const absl::Status status = WaitInVain(one);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "rank 5 ended: no memory left");
  EXPECT_EQ(BlamedRank(status), 5);
}

TEST_F(HostSyncTest, AbortBlamesWhomTheStatusBlames) {
  HostSync one(Options(0)), other(Options(1));
  other.Abort(BlameRank(absl::UnavailableError("rank 7 is gone"), 7));
  EXPECT_EQ(BlamedRank(WaitInVain(one)), 7);
}

TEST_F(HostSyncTest, CancelledJobIsNobodysFault) {
  HostSync one(Options(0)), other(Options(1));
  other.Abort(absl::AbortedError("the job was cancelled"));
  EXPECT_EQ(BlamedRank(WaitInVain(one)), std::nullopt);
}

TEST_F(HostSyncTest, FirstAbortWins) {
  HostSync one(Options(0)), other(Options(1));
  one.Abort(absl::InternalError("first"));
  other.Abort(absl::InternalError("second"));
  EXPECT_EQ(other.Check().message(), "rank 4 ended: first");
}

TEST_F(HostSyncTest, InterruptEndsThisRanksWaitWithItsStatus) {
  HostSync sync(Options(0));
  std::jthread thread([&] { sync.Interrupt(absl::AbortedError("generation ended")); });
  EXPECT_EQ(WaitInVain(sync).message(), "generation ended");
}

TEST_F(HostSyncTest, DeadlineNamesTheMissing) {
  HostSync::Options options = Options(0);
  options.timeout = absl::Milliseconds(1);
  HostSync sync(options);
  const absl::Status status = WaitInVain(sync);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "waited 1ms for godot; missing: rank 5");
  EXPECT_EQ(BlamedRank(status), 5);
}

TEST_F(HostSyncTest, ArrivalAtTheDeadlineCounts) {
  HostSync::Options options = Options(0);
  options.timeout = absl::ZeroDuration();
  bool parked = false, asked = false;
  options.on_park = [&](bool now) { parked = now; };
  HostSync sync(options);
  // Nobody is missing any more when the list is made, though the condition did not hold before it.
  EXPECT_TRUE(sync.WaitUntil([&] { return parked && asked; }, [] { return std::string(); },
                             [&] {
                               asked = true;
                               return std::vector<int>();
                             })
                  .ok());
}

TEST_F(HostSyncTest, PeerThatIsGoneIsNamed) {
  pid_t child = 0;
  const char* argv[] = {"/bin/true", nullptr};
  ASSERT_EQ(posix_spawn(&child, argv[0], nullptr, nullptr, const_cast<char**>(argv), environ), 0);
  const UniqueFd own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const UniqueFd peer(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(own.valid() && peer.valid());
  HostSync::Options options = Options(0);
  options.peer_pidfds = {own.get(), peer.get()};
  HostSync sync(options);
  const absl::Status status = WaitInVain(sync);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "the process of rank 5 on host alpha is gone");
  EXPECT_EQ(BlamedRank(status), 5);
  waitpid(child, nullptr, 0);
}

TEST_F(HostSyncTest, WhatAPeerDidBeforeItLeftCounts) {
  pid_t child = 0;
  const char* argv[] = {"/bin/true", nullptr};
  ASSERT_EQ(posix_spawn(&child, argv[0], nullptr, nullptr, const_cast<char**>(argv), environ), 0);
  const UniqueFd peer(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  waitpid(child, nullptr, 0);
  HostSync::Options options = Options(0);
  options.peer_pidfds = {-1, peer.get()};
  bool parked = false;
  options.on_park = [&](bool now) { parked = now; };
  HostSync sync(options);
  // The peer's last announcement becomes visible between the look at the condition and the look at
  // the peer.
  int asked = 0;
  EXPECT_TRUE(sync.WaitUntil([&] { return parked && ++asked == 2; }, [] { return std::string(); },
                             [] { return std::vector<int>(); })
                  .ok());
}

TEST_F(HostSyncTest, AgentThatIsGoneIsNamedByItsHost) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd worker_end(ends[0]), agent_end(ends[1]);
  HostSync::Options options = Options(0);
  options.agent_socket = worker_end.get();
  HostSync sync(options);
  EXPECT_TRUE(sync.Check().ok());
  agent_end.Reset();
  const absl::Status status = WaitInVain(sync);
  EXPECT_EQ(status.message(), "the agent of host alpha is gone");
  EXPECT_EQ(BlamedRank(status), std::nullopt);
}

TEST_F(HostSyncTest, ErrorOfTheConditionEndsTheWait) {
  HostSync sync(Options(0));
  EXPECT_EQ(sync.WaitUntil([]() -> absl::StatusOr<bool> { return absl::DataLossError("torn"); },
                           [] { return std::string(); }, [] { return std::vector<int>(); })
                .message(),
            "torn");
}

}  // namespace
}  // namespace tessera
