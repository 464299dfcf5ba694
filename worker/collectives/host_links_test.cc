#include "worker/collectives/host_links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// Ample on a machine that is busy with other tests; no test waits for it.
constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(100);

// Hosts "a", "b", "c" with two ranks each; these are the links of local rank 1.
struct Hosts {
  explicit Hosts(int count, absl::Duration timeout = kLong, int64_t gather_bytes = 16)
      : staging(count), links(count) {
    std::vector<std::unique_ptr<GlooHostListener>> listeners;
    std::vector<std::string> addresses;
    for (int host = 0; host < count; ++host) {
      staging[host].resize(HostLinks::StagingBytes(count));
      HostLinks::Options options;
      for (int other = 0; other < count; ++other) {
        options.host_names.push_back(std::string(1, static_cast<char>('a' + other)));
        options.ranks.push_back(2 * other + 1);
      }
      options.host = host;
      options.gather_bytes = gather_bytes;
      options.staging = absl::MakeSpan(staging[host]);
      options.timeout = timeout;
      listeners.push_back(*GlooHostListener::Listen(options));
      addresses.push_back(listeners.back()->addresses());
    }
    std::vector<std::jthread> threads;
    for (int host = 0; host < count; ++host) {
      threads.emplace_back([&, host] {
        absl::StatusOr<std::unique_ptr<HostLinks>> made =
            GlooHostListener::Connect(std::move(listeners[host]), addresses);
        EXPECT_TRUE(made.ok()) << made.status();
        if (made.ok()) links[host] = *std::move(made);
      });
    }
  }
  std::vector<std::vector<char>> staging;
  std::vector<std::unique_ptr<HostLinks>> links;
};

absl::Status Await(HostLinks& links, HostLinks::Ticket ticket) {
  while (true) {
    const absl::StatusOr<bool> done = links.Done(ticket);
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    std::this_thread::yield();
  }
}

// Not exact in floating point: a sum's last bits depend on the order.
float Value(int host, int64_t i) {
  return static_cast<float>(std::sin(static_cast<double>(i) * 0.37 + host)) *
         (host == 1 ? 1e4f : 1.0f);
}

void CheckSums(int hosts, int64_t numel) {
  Hosts world(hosts);
  std::vector<std::vector<float>> values(hosts, std::vector<float>(numel));
  std::vector<HostLinks::Ticket> tickets;
  for (int host = 0; host < hosts; ++host) {
    for (int64_t i = 0; i < numel; ++i) values[host][i] = Value(host, i);
    tickets.push_back(world.links[host]->StartSum(absl::MakeSpan(values[host]), "a sum"));
  }
  for (int host = 0; host < hosts; ++host) {
    ASSERT_TRUE(Await(*world.links[host], tickets[host]).ok());
  }
  int64_t wrong = 0;
  for (int64_t i = 0; i < numel; ++i) {
    float sum = Value(0, i);
    for (int host = 1; host < hosts; ++host) sum += Value(host, i);
    for (int host = 0; host < hosts; ++host) wrong += values[host][i] == sum ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0) << hosts << " hosts, " << numel << " elements";
}

TEST(HostLinksTest, AddsInHostOrderOnEveryHost) {
  for (const int hosts : {2, 3}) {
    // Fewer elements than hosts; one piece; several, the last of them short.
    for (const int64_t numel : {0, 1, 2, 5, 1000, 700'001}) CheckSums(hosts, numel);
  }
}

TEST(HostLinksTest, AddsFloat64) {
  Hosts world(2);
  std::vector<double> a = {1.0, 1e-17, 3.0}, b = {1e-16, 1.0, -3.0};
  const HostLinks::Ticket at_a = world.links[0]->StartSum(absl::MakeSpan(a), "a sum");
  const HostLinks::Ticket at_b = world.links[1]->StartSum(absl::MakeSpan(b), "a sum");
  ASSERT_TRUE(Await(*world.links[0], at_a).ok());
  ASSERT_TRUE(Await(*world.links[1], at_b).ok());
  const std::vector<double> sum = {1.0 + 1e-16, 1e-17 + 1.0, 0.0};
  EXPECT_EQ(a, sum);
  EXPECT_EQ(b, sum);
}

TEST(HostLinksTest, GathersPayloadsOfAnyLengthInHostOrder) {
  Hosts world(3);
  const std::vector<std::string> payloads = {"yes", "", std::string("\0bytes", 6)};
  std::vector<HostLinks::Ticket> tickets;
  for (int host = 0; host < 3; ++host)
    tickets.push_back(world.links[host]->StartGather(payloads[host], "votes"));
  for (int host = 0; host < 3; ++host) {
    ASSERT_TRUE(Await(*world.links[host], tickets[host]).ok());
    EXPECT_EQ(world.links[host]->TakeGathered(tickets[host]), payloads);
  }
}

TEST(HostLinksTest, DoesOperationsInTheirOrderWhileTheCallerGoesOn) {
  Hosts world(2);
  constexpr int kSums = 20;
  std::vector<std::vector<float>> a(kSums, std::vector<float>(100, 1)), b = a;
  std::vector<HostLinks::Ticket> at_a, at_b;
  std::atomic<int> told{0};
  world.links[0]->SetOnProgress([&] { ++told; });
  for (int i = 0; i < kSums; ++i) {
    at_a.push_back(world.links[0]->StartSum(absl::MakeSpan(a[i]), absl::StrCat("sum ", i)));
  }
  EXPECT_EQ(*world.links[0]->Done(at_a[0]), false);
  for (int i = 0; i < kSums; ++i) {
    at_b.push_back(world.links[1]->StartSum(absl::MakeSpan(b[i]), absl::StrCat("sum ", i)));
  }
  ASSERT_TRUE(Await(*world.links[0], at_a.back()).ok());
  for (int i = 0; i < kSums; ++i) {
    EXPECT_TRUE(*world.links[0]->Done(at_a[i]));
    EXPECT_EQ(a[i], std::vector<float>(100, 2));
  }
  ASSERT_TRUE(Await(*world.links[1], at_b.back()).ok());
  world.links[0].reset();
  EXPECT_EQ(told, kSums);
}

TEST(HostLinksTest, NamesTheHostsThatDoNotAnswerInTime) {
  Hosts world(3, kShort);
  std::vector<float> values(10, 1);
  const HostLinks::Ticket ticket =
      world.links[0]->StartSum(absl::MakeSpan(values), "reduce of unit h.0");
  const absl::Status status = Await(*world.links[0], ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "waited 100ms for reduce of unit h.0; missing: hosts b (rank 3), c (rank 5)");
  EXPECT_EQ(BlamedRank(status), 3);
  // The last word: nothing else is tried.
  EXPECT_EQ(Await(*world.links[0], world.links[0]->StartGather("", "votes")), status);
}

TEST(HostLinksTest, AHostThatAbortsEndsTheOthersWaitsAndIsNamed) {
  Hosts world(3);
  std::vector<float> a(10, 1), c = a;
  const HostLinks::Ticket at_a = world.links[0]->StartSum(absl::MakeSpan(a), "reduce of unit h.0");
  const HostLinks::Ticket at_c = world.links[2]->StartSum(absl::MakeSpan(c), "reduce of unit h.0");
  world.links[1]->Abort(absl::InternalError("b has its reasons"));
  EXPECT_EQ(world.links[1]->Check(), absl::InternalError("b has its reasons"));
  for (const auto& [host, ticket] : {std::pair(0, at_a), std::pair(2, at_c)}) {
    const absl::Status status = Await(*world.links[host], ticket);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StartsWith(
        status.message(), absl::StrCat("the connection of rank ", 2 * host + 1,
                                       " to rank 3 on host b is gone, in reduce of unit h.0: ")))
        << status;
    EXPECT_EQ(BlamedRank(status), 3);
    EXPECT_FALSE(absl::StrContains(status.message(), ".cc"));
  }
}

TEST(HostLinksTest, AnAbortEndsTheRanksOwnOperations) {
  Hosts world(2);
  std::vector<float> values(10, 1);
  const HostLinks::Ticket ticket = world.links[0]->StartSum(absl::MakeSpan(values), "a sum");
  world.links[0]->Abort(absl::AbortedError("the generation ended"));
  EXPECT_EQ(Await(*world.links[0], ticket), absl::AbortedError("the generation ended"));
}

TEST(HostLinksTest, AHostThatStartsSomethingElseIsNamed) {
  Hosts world(2);
  std::vector<float> values(10, 1);
  const HostLinks::Ticket at_a =
      world.links[0]->StartSum(absl::MakeSpan(values), "reduce of unit h.0");
  const HostLinks::Ticket at_b = world.links[1]->StartGather("", "votes");
  for (const auto& [host, ticket] : {std::pair(0, at_a), std::pair(1, at_b)}) {
    const absl::Status status = Await(*world.links[host], ticket);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Reason(status), "ORDER_MISMATCH");
    const std::string reduce = "reduce of unit h.0 of 10 elements";
    EXPECT_EQ(status.message(),
              absl::StrCat(
                  "hosts disagree on operation 1 between them: rank ",
                  host == 0 ? "3 on host b started votes, rank 1 on host a "
                            : absl::StrCat("1 on host a started ", reduce, ", rank 3 on host b "),
                  host == 0 ? reduce : "votes"));
  }
}

TEST(HostLinksTest, AnAddressOfAnotherMachineCannotBeListenedOn) {
  std::vector<char> staging(HostLinks::StagingBytes(2));
  HostLinks::Options options;
  options.host_names = {"a", "b"};
  options.ranks = {0, 1};
  options.address = "192.0.2.1";  // for documentation: nobody's
  options.staging = absl::MakeSpan(staging);
  const absl::Status status = GlooHostListener::Listen(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StartsWith(status.message(), "host a cannot listen on 192.0.2.1"));
  EXPECT_TRUE(absl::StrContains(status.message(), "--host_address"));
}

TEST(HostLinksTest, RefusesOptionsAndAddressesThatMakeNoSense) {
  std::vector<char> staging(HostLinks::StagingBytes(2));
  HostLinks::Options options;
  options.host_names = {"a"};
  options.ranks = {0};
  EXPECT_EQ(GlooHostListener::Listen(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.host_names = {"a", "b"};
  options.ranks = {0, 1};
  EXPECT_EQ(GlooHostListener::Listen(options).status().message(),
            "links with 0 bytes of staging need 1048576");
  options.staging = absl::MakeSpan(staging);
  for (const char* other : {"", "127.0.0.1", "127.0.0.1 70000", "localhost 1"}) {
    auto listener = GlooHostListener::Listen(options);
    ASSERT_TRUE(listener.ok());
    const std::string own = (*listener)->addresses();
    EXPECT_EQ(GlooHostListener::Connect(*std::move(listener), {own, other}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << other;
  }
}

TEST(HostLinksTest, AHostThatDoesNotConnectIsNamed) {
  std::vector<char> staging(HostLinks::StagingBytes(2));
  HostLinks::Options options;
  options.host_names = {"a", "b"};
  options.ranks = {0, 1};
  options.timeout = kShort;
  options.staging = absl::MakeSpan(staging);
  auto a = GlooHostListener::Listen(options);
  options.host = 1;
  auto b = GlooHostListener::Listen(options);
  const std::vector<std::string> addresses = {(*a)->addresses(), (*b)->addresses()};
  b->reset();
  const absl::Status status = GlooHostListener::Connect(*std::move(a), addresses).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StartsWith(status.message(), "rank 0 has no connection to rank 1 on host b: "))
      << status;
  EXPECT_EQ(BlamedRank(status), 1);
}

}  // namespace
}  // namespace tessera
