#include "worker/agent_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <string>
#include <thread>

namespace tessera {
namespace {

struct SocketPair {
  SocketPair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    agent.Reset(ends[0]);
    worker.Reset(ends[1]);
  }
  UniqueFd agent, worker;
};

// An open file with one page for each of `pages`, so that a descriptor can be told from the next.
UniqueFd FileOfPages(int pages) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), 4096 * pages), 0);
  return fd;
}

int64_t LengthOf(int fd) {
  struct stat status;
  EXPECT_EQ(fstat(fd, &status), 0);
  return status.st_size;
}

v1::AgentHello HelloFor(int ranks) {
  v1::AgentHello hello;
  hello.set_coordinator("localhost:7000");
  hello.mutable_assignment()->set_local_world_size(ranks);
  hello.mutable_assignment()->set_rank(1);
  hello.set_incarnation("abc");
  return hello;
}

// Sends all of it, waiting for the reader where the socket is full.
absl::Status SendAll(HandoffSender& sender, int socket) {
  for (;;) {
    absl::StatusOr<bool> sent = sender.Send();
    if (!sent.ok()) return sent.status();
    if (*sent) return absl::OkStatus();
    pollfd writable = {socket, POLLOUT, 0};
    EXPECT_EQ(poll(&writable, 1, 60000), 1);
  }
}

struct Descriptors {
  explicit Descriptors(int count) {
    for (int i = 0; i < count; ++i) {
      owned.push_back(FileOfPages(i + 1));
      fds.push_back(owned.back().get());
    }
  }
  std::vector<UniqueFd> owned;
  std::vector<int> fds;
};

TEST(AgentSocketTest, HandsOverMessageAndDescriptorsInOrder) {
  SocketPair pair;
  Descriptors descriptors(kHandoffFiles + 2);
  HandoffSender sender(pair.agent.get(), HelloFor(2), descriptors.fds);
  ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());

  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(std::move(pair.worker), absl::Seconds(60));
  ASSERT_TRUE(handoff.ok()) << handoff.status();
  EXPECT_EQ(handoff->hello.coordinator(), "localhost:7000");
  EXPECT_EQ(handoff->hello.assignment().rank(), 1);
  EXPECT_EQ(handoff->hello.incarnation(), "abc");
  ASSERT_EQ(handoff->files.size(), 4u);
  EXPECT_EQ(LengthOf(handoff->file(HandoffFile::kUnsharded)), 4096);
  EXPECT_EQ(LengthOf(handoff->file(HandoffFile::kGradient)), 2 * 4096);
  EXPECT_EQ(LengthOf(handoff->file(HandoffFile::kControl)), 3 * 4096);
  EXPECT_EQ(LengthOf(handoff->file(HandoffFile::kRank)), 4 * 4096);
  ASSERT_EQ(handoff->peer_pidfds.size(), 2u);
  EXPECT_EQ(LengthOf(handoff->peer_pidfds[0].get()), 5 * 4096);
  EXPECT_EQ(LengthOf(handoff->peer_pidfds[1].get()), 6 * 4096);
  for (const UniqueFd& fd : handoff->files) EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(handoff->agent_socket.get(), F_GETFD), FD_CLOEXEC);
}

TEST(AgentSocketTest, TheSocketHangsUpWhenTheAgentDies) {
  SocketPair pair;
  Descriptors descriptors(kHandoffFiles + 1);
  HandoffSender sender(pair.agent.get(), HelloFor(1), descriptors.fds);
  ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());
  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(std::move(pair.worker), absl::Seconds(60));
  ASSERT_TRUE(handoff.ok());
  pollfd state = {handoff->agent_socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&state, 1, 0), 0);
  pair.agent.Reset();
  EXPECT_EQ(poll(&state, 1, 0), 1);
  EXPECT_NE(state.revents & POLLHUP, 0);
}

TEST(AgentSocketTest, FurtherHandoffsBringTheControlFileAlone) {
  SocketPair pair;
  Descriptors first(kHandoffFiles + 2), second(1 + 2), third(1 + 2);
  HandoffSender sender(pair.agent.get(), HelloFor(2), first.fds);
  ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());
  // Both before either is read.
  for (Descriptors* descriptors : {&second, &third}) {
    v1::AgentHello hello = HelloFor(2);
    hello.set_recover(true);
    hello.mutable_assignment()->set_generation(descriptors == &second ? 2 : 3);
    HandoffSender further(pair.agent.get(), hello, descriptors->fds);
    ASSERT_TRUE(SendAll(further, pair.agent.get()).ok());
  }
  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(std::move(pair.worker), absl::Seconds(60));
  ASSERT_TRUE(handoff.ok()) << handoff.status();
  for (const int64_t generation : {2, 3}) {
    const absl::StatusOr<AgentHandoff> further =
        ReceiveFurtherHandoff(handoff->agent_socket.get(), absl::Seconds(60));
    ASSERT_TRUE(further.ok()) << further.status();
    EXPECT_EQ(further->hello.assignment().generation(), generation);
    ASSERT_EQ(further->files.size(), 4u);
    EXPECT_EQ(LengthOf(further->file(HandoffFile::kControl)), 4096);
    EXPECT_FALSE(further->files[static_cast<int>(HandoffFile::kRank)].valid());
    ASSERT_EQ(further->peer_pidfds.size(), 2u);
    EXPECT_EQ(LengthOf(further->peer_pidfds[1].get()), 3 * 4096);
    EXPECT_FALSE(further->agent_socket.valid());
  }
}

TEST(AgentSocketTest, AFirstHandoffIsNoFurtherOne) {
  SocketPair pair;
  Descriptors descriptors(kHandoffFiles + 1);
  HandoffSender sender(pair.agent.get(), HelloFor(1), descriptors.fds);
  ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());
  EXPECT_EQ(ReceiveFurtherHandoff(pair.worker.get(), absl::Seconds(60)).status().code(),
            absl::StatusCode::kInternal);
}

TEST(AgentSocketTest, AMessageLargerThanTheSocketArrivesInParts) {
  SocketPair pair;
  v1::AgentHello hello = HelloFor(1);
  hello.set_host_name(std::string(4 << 20, 'h'));
  Descriptors descriptors(kHandoffFiles + 1);
  HandoffSender sender(pair.agent.get(), hello, descriptors.fds);
  // Nobody reads yet: the sender does not wait.
  const absl::StatusOr<bool> first = sender.Send();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(*first);

  absl::Status sent;
  std::thread agent([&] { sent = SendAll(sender, pair.agent.get()); });
  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(std::move(pair.worker), absl::Seconds(60));
  agent.join();
  ASSERT_TRUE(sent.ok()) << sent;
  ASSERT_TRUE(handoff.ok()) << handoff.status();
  EXPECT_EQ(handoff->hello.host_name().size(), 4u << 20);
  EXPECT_EQ(handoff->files.size(), 4u);
  EXPECT_EQ(handoff->peer_pidfds.size(), 1u);
}

TEST(AgentSocketTest, ManyRanksFitIntoOneMessage) {
  SocketPair pair;
  Descriptors descriptors(kHandoffFiles + kMaxLocalWorkers);
  HandoffSender sender(pair.agent.get(), HelloFor(kMaxLocalWorkers), descriptors.fds);
  ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());
  absl::StatusOr<AgentHandoff> handoff = ReceiveHandoff(std::move(pair.worker), absl::Seconds(60));
  ASSERT_TRUE(handoff.ok()) << handoff.status();
  EXPECT_EQ(LengthOf(handoff->peer_pidfds.back().get()), 4096 * (4 + 128));
}

TEST(AgentSocketTest, ADeadAgentIsUnavailableAtOnce) {
  SocketPair pair;
  pair.agent.Reset();
  EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::Seconds(60)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(AgentSocketTest, AnAgentThatDiesMidMessageIsUnavailable) {
  SocketPair pair;
  const char half[] = {100, 0, 0, 0, 1, 2, 3};
  ASSERT_EQ(write(pair.agent.get(), half, sizeof(half)), static_cast<ssize_t>(sizeof(half)));
  pair.agent.Reset();
  EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::Seconds(60)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(AgentSocketTest, ASilentAgentIsDeadlineExceeded) {
  SocketPair pair;
  EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(AgentSocketTest, AWorkerThatEndedIsUnavailable) {
  SocketPair pair;
  pair.worker.Reset();
  HandoffSender sender(pair.agent.get(), HelloFor(0), {});
  EXPECT_EQ(sender.Send().status().code(), absl::StatusCode::kUnavailable);
}

TEST(AgentSocketTest, RefusesWhatIsNoHandoff) {
  {
    SocketPair pair;
    const char endless[] = {-1, -1, -1, -1};
    ASSERT_EQ(write(pair.agent.get(), endless, sizeof(endless)), 4);
    EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::Seconds(60)).status().code(),
              absl::StatusCode::kInternal);
  }
  {
    SocketPair pair;
    const char garbage[] = {2, 0, 0, 0, -1, -1};
    ASSERT_EQ(write(pair.agent.get(), garbage, sizeof(garbage)), 6);
    EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::Seconds(60)).status().code(),
              absl::StatusCode::kInternal);
  }
  {
    SocketPair pair;
    Descriptors descriptors(kHandoffFiles);  // no pidfd
    HandoffSender sender(pair.agent.get(), HelloFor(1), descriptors.fds);
    ASSERT_TRUE(SendAll(sender, pair.agent.get()).ok());
    EXPECT_EQ(ReceiveHandoff(std::move(pair.worker), absl::Seconds(60)).status().code(),
              absl::StatusCode::kInternal);
  }
  EXPECT_EQ(ReceiveHandoff(UniqueFd(), absl::Seconds(60)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tessera
