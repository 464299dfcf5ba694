#include "coordinator/verdict.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const absl::Duration kGrace = absl::Milliseconds(300);

using Event = std::function<void(Verdict&)>;

// Plays `events` in every order and expects each time the same rank (none: a host) and a reason
// with `words`.
void ExpectInEveryOrder(const std::vector<Event>& events, std::optional<int> rank,
                        const std::string& words) {
  std::vector<int> order(events.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  do {
    Verdict verdict({.grace = kGrace});
    std::string trace;
    for (const int index : order) {
      events[index](verdict);
      trace += std::to_string(index);
    }
    const std::optional<Blame> blame = verdict.Decide(kStart + kGrace);
    ASSERT_TRUE(blame.has_value()) << trace;
    EXPECT_EQ(blame->rank, rank) << trace << ": " << blame->reason;
    EXPECT_TRUE(absl::StrContains(blame->reason, words)) << trace << ": " << blame->reason;
  } while (std::next_permutation(order.begin(), order.end()));
}

Event Broke(int rank) {
  return [rank](Verdict& verdict) { verdict.RankBroke(rank, "node-a", kStart); };
}
Event Blames(int rank, int blamed) {
  return [rank, blamed](Verdict& verdict) {
    verdict.RankLeft(rank, "node-a", absl::UnavailableError("a peer is gone"), blamed, kStart);
  };
}
Event Errs(int rank, const absl::Status& status) {
  return [rank, status](Verdict& verdict) {
    verdict.RankLeft(rank, "node-a", status, std::nullopt, kStart);
  };
}
Event Exits(int rank, int exit_code, int signal) {
  return [=](Verdict& verdict) { verdict.RankExited(rank, "node-a", exit_code, signal, kStart); };
}
Event HostGone() {
  return [](Verdict& verdict) { verdict.HostLost("node-a", "its agent (pid 7) is gone", kStart); };
}

TEST(VerdictTest, NothingAgainstAnybodyIsNoVerdict) {
  EXPECT_FALSE(Verdict({}).Decide(kStart).has_value());
}

TEST(VerdictTest, KilledRankIsBlamedInEveryOrderOfWhatItsDeathCauses) {
  ExpectInEveryOrder({Broke(1), Blames(0, 1), Exits(1, 0, 9)}, 1, "killed by signal 9 (SIGKILL)");
}

TEST(VerdictTest, KilledRankIsBlamedThoughItsVictimsExitBadlyToo) {
  // Rank 0 leaves, blaming rank 1, and exits with 1; rank 2 saw rank 0 go first.
  ExpectInEveryOrder({Broke(1), Blames(0, 1), Blames(2, 0), Exits(1, 0, 9), Exits(0, 1, 0)}, 1,
                     "rank 1 on host node-a was killed by signal 9");
}

TEST(VerdictTest, KilledRankIsBlamedByItsPeersWhereTheAgentSaysNothing) {
  ExpectInEveryOrder({Broke(1), Blames(0, 1)}, 1, "rank 1 on host node-a is to blame, says rank 0");
}

TEST(VerdictTest, ExitCodeOfTheFirstToDieIsTheReason) {
  ExpectInEveryOrder({Broke(2), Blames(0, 2), Blames(1, 2), Exits(2, 3, 0), Exits(0, 1, 0)}, 2,
                     "exited with code 3");
}

TEST(VerdictTest, CleanExitIsABadEndBeforeTheRankHasJoined) {
  const Event never_joined = [](Verdict& verdict) {
    verdict.RankExited(1, "node-a", 0, 0, kStart, /*joined=*/false);
  };
  // Rank 0 had joined, and saw the process go.
  ExpectInEveryOrder({never_joined, Blames(0, 1), Exits(0, 1, 0)}, 1,
                     "rank 1 on host node-a exited with code 0 before it joined the job");
}

TEST(VerdictTest, LostHostIsBlamedInEveryOrderAndNoRank) {
  const absl::Status agent_gone = absl::UnavailableError("the agent of host node-a is gone");
  ExpectInEveryOrder({HostGone(), Broke(0), Errs(1, agent_gone), Blames(2, 0)}, std::nullopt,
                     "host node-a is lost: its agent (pid 7) is gone");
}

TEST(VerdictTest, AgentThatGoesAfterItReportedADeathIsNotTheCause) {
  Verdict verdict({.grace = kGrace});
  verdict.RankExited(1, "node-a", 0, 11, kStart);
  verdict.HostLost("node-a", "its agent (pid 7) is gone", kStart);
  verdict.HostLeft("node-a", absl::UnavailableError("a worker died"), std::nullopt, kStart);
  const std::optional<Blame> blame = verdict.Decide(kStart + kGrace);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->rank, 1);
  EXPECT_EQ(blame->reason, "rank 1 on host node-a was killed by signal 11 (SIGSEGV)");
}

TEST(VerdictTest, OwnErrorOfTheBlamedRankIsTheReason) {
  const absl::Status own = absl::InvalidArgumentError("data: input.txt is empty");
  ExpectInEveryOrder({Errs(1, own), Blames(0, 1), Exits(1, 1, 0), Exits(0, 1, 0)}, 1,
                     "rank 1 on host node-a: data: input.txt is empty");
  Verdict verdict({.grace = kGrace});
  Exits(1, 1, 0)(verdict);
  Errs(1, own)(verdict);
  EXPECT_EQ(verdict.Decide(kStart + kGrace)->code, absl::StatusCode::kInvalidArgument);
}

TEST(VerdictTest, RankThatDidNotArriveIsBlamedAndNotTheOneThatSaysSo) {
  Verdict verdict({.grace = kGrace});
  verdict.RankLeft(0, "node-a", absl::DeadlineExceededError("rank 1 did not arrive at unit h.0"), 1,
                   kStart);
  const std::optional<Blame> blame = verdict.Decide(kStart + kGrace);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->rank, 1);
  EXPECT_EQ(blame->code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(blame->reason, "rank 1 did not arrive at unit h.0"));
}

TEST(VerdictTest, RankThatBlamesItselfHasAnErrorOfItsOwn) {
  Verdict verdict({.grace = kGrace});
  verdict.RankLeft(1, "node-a", absl::InternalError("broken"), 1, kStart);
  const std::optional<Blame> blame = verdict.Decide(kStart + kGrace);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->rank, 1);
  EXPECT_EQ(blame->reason, "rank 1 on host node-a: broken");
}

TEST(VerdictTest, WaitsForTheGraceUnlessItIsTheHost) {
  Verdict rank_first({.grace = kGrace});
  Broke(0)(rank_first);
  EXPECT_FALSE(rank_first.Decide(kStart).has_value());
  EXPECT_FALSE(rank_first.Decide(kStart + absl::Milliseconds(299)).has_value());
  EXPECT_EQ(rank_first.Decide(kStart + kGrace)->rank, 0);

  Verdict host({.grace = kGrace});
  Broke(0)(host);
  HostGone()(host);
  EXPECT_TRUE(host.Decide(kStart).has_value());
}

TEST(VerdictTest, CleanExitCountsOnlyBeforeTheWorkIsDone) {
  Verdict early({.grace = kGrace});
  Exits(0, 0, 0)(early);
  EXPECT_EQ(early.Decide(kStart + kGrace)->reason,
            "rank 0 on host node-a exited before its work was done");
  // The agent's message overtook the rank's Leave, which travels on another stream.
  early.Done(0);
  EXPECT_FALSE(early.Decide(kStart + kGrace).has_value());
}

TEST(VerdictTest, LeaseEndNamesRankAndDuration) {
  Verdict verdict({.grace = kGrace});
  verdict.RankLeaseEnded(3, "node-a", absl::Seconds(5), kStart);
  const std::optional<Blame> blame = verdict.Decide(kStart + kGrace);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->rank, 3);
  EXPECT_EQ(blame->reason, "rank 3 on host node-a is lost: not heard of for 5s");
}

TEST(VerdictTest, AgentThatLeavesSaysWhy) {
  Verdict memory({.grace = kGrace});
  memory.HostLeft("node-a", absl::ResourceExhaustedError("needs 9 GiB, has 4"), std::nullopt,
                  kStart);
  const std::optional<Blame> blame = memory.Decide(kStart);
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(blame->reason, "host node-a: needs 9 GiB, has 4");
  EXPECT_FALSE(blame->rank.has_value());

  Verdict ok({.grace = kGrace});
  ok.HostLeft("node-a", absl::OkStatus(), std::nullopt, kStart);
  EXPECT_EQ(ok.Decide(kStart)->reason, "host node-a left before the job was done");

  Verdict blames({.grace = kGrace});
  blames.HostLeft("node-a", absl::UnavailableError("it did not start"), 2, kStart);
  EXPECT_EQ(blames.Decide(kStart + kGrace)->rank, 2);
}

TEST(VerdictTest, WhatOneHostsAgentSawDoesNotHideTheLossOfAnotherHost) {
  Verdict verdict({});
  verdict.RankExited(0, "node-a", 1, 0, absl::UnixEpoch());
  verdict.HostLost("node-a", "its agent (pid 7) is gone", absl::UnixEpoch());
  // A consequence, which has its grace.
  EXPECT_FALSE(verdict.Decide(absl::UnixEpoch()).has_value());
  verdict.HostLost("node-b", "its agent (pid 8) is gone", absl::UnixEpoch());
  const std::optional<Blame> blame = verdict.Decide(absl::UnixEpoch());
  ASSERT_TRUE(blame.has_value());
  EXPECT_EQ(blame->reason, "host node-b is lost: its agent (pid 8) is gone");
}

TEST(VerdictTest, ABrokenRankSaysAsMuchAsOneThatLeftAndItsProcessCountsForNothing) {
  const Event broken = [](Verdict& verdict) {
    verdict.RankBroken(0, "node-a", absl::UnavailableError("rank 1 is gone"), 1, kStart);
  };
  ExpectInEveryOrder({broken, Exits(0, 1, 0)}, 1, "says rank 0: rank 1 is gone");
  ExpectInEveryOrder({broken, Exits(0, 1, 0), Broke(1), Exits(1, 0, 9)}, 1, "signal 9");
  Verdict verdict({.grace = kGrace});
  broken(verdict);
  EXPECT_TRUE(verdict.IsBroken(0));
  EXPECT_FALSE(verdict.IsBroken(1));
}

TEST(VerdictTest, SaysWhatItIsAbout) {
  Verdict host({.grace = kGrace});
  HostGone()(host);
  EXPECT_TRUE(host.Decide(kStart)->of_host);
  Verdict early({.grace = kGrace});
  Exits(0, 0, 0)(early);
  EXPECT_TRUE(early.Decide(kStart + kGrace)->finished_early);
  EXPECT_FALSE(early.Decide(kStart + kGrace)->of_host);
  Verdict killed({.grace = kGrace});
  Exits(0, 0, 9)(killed);
  EXPECT_FALSE(killed.Decide(kStart + kGrace)->finished_early);
}

}  // namespace
}  // namespace tessera
