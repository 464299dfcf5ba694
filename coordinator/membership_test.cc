#include "coordinator/membership.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using State = RankMember::State;

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kLease = absl::Seconds(5);

v1::JoinHost HostJoin(const std::string& name, int local_workers, const std::string& job) {
  v1::JoinHost join;
  join.set_host_name(name);
  join.set_local_workers(local_workers);
  join.set_job(job);
  join.set_incarnation(name + "-1");
  join.set_pid(7);
  return join;
}

v1::JoinRank RankJoin(const std::string& job, int64_t generation, int rank,
                      const std::string& incarnation) {
  v1::JoinRank join;
  join.set_job(job);
  join.set_generation(generation);
  join.set_rank(rank);
  join.set_incarnation(incarnation);
  join.set_pid(100 + rank);
  return join;
}

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() { members_.Advance(clock_); }

  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += kTick) {
      clock_ += kTick;
      members_.Advance(clock_);
    }
  }

  // A host "node-a" that serves "gpt" with `world_size` ranks that have joined.
  void FormGpt(int world_size) {
    host_ = members_.AddHost(HostJoin("node-a", world_size, "gpt"), kLease);
    generation_ = members_.Form("gpt", {host_}, world_size, kLease);
    for (int rank = 0; rank < world_size; ++rank) {
      const auto member =
          members_.AddRank(RankJoin("gpt", generation_, rank, "i" + std::to_string(rank)), kLease);
      ASSERT_TRUE(member.ok());
      ranks_.push_back(*member);
    }
  }

  absl::Time clock_ = absl::FromUnixSeconds(1000);
  Membership members_{{}};
  MemberId host_ = 0;
  int64_t generation_ = 0;
  std::vector<MemberId> ranks_;
};

TEST_F(MembershipTest, WaitingHostsComeOldestFirstAndBoundOnesApartFromThePool) {
  const MemberId pool_1 = members_.AddHost(HostJoin("p1", 2, ""), kLease);
  const MemberId bound = members_.AddHost(HostJoin("b", 2, "gpt"), kLease);
  const MemberId pool_2 = members_.AddHost(HostJoin("p2", 4, ""), kLease);
  EXPECT_EQ(members_.Pool(), (std::vector<MemberId>{pool_1, pool_2}));
  EXPECT_EQ(members_.Waiting("gpt"), (std::vector<MemberId>{bound}));
  EXPECT_TRUE(members_.Waiting("other").empty());
  members_.Reserve(pool_1, "gpt");
  EXPECT_EQ(members_.Pool(), (std::vector<MemberId>{pool_2}));
}

TEST_F(MembershipTest, GenerationNumbersGoOnWhenANameIsUsedAgain) {
  FormGpt(1);
  EXPECT_EQ(generation_, 1);
  members_.End("gpt");
  members_.Forget("gpt");
  const MemberId host = members_.AddHost(HostJoin("node-b", 1, "gpt"), kLease);
  EXPECT_EQ(members_.Form("gpt", {host}, 1, kLease), 2);
  // A worker of the first job, started late, does not get into the second.
  const auto late = members_.AddRank(RankJoin("gpt", 1, 0, "old"), kLease);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(late.status()), "STALE_GENERATION");
}

TEST_F(MembershipTest, RefusesRanksThatDoNotExistAreTakenOrStale) {
  FormGpt(2);
  EXPECT_EQ(members_.AddRank(RankJoin("gpt", 1, 2, "x"), kLease).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(members_.AddRank(RankJoin("gpt", 1, -1, "x"), kLease).status().code(),
            absl::StatusCode::kNotFound);
  const auto taken = members_.AddRank(RankJoin("gpt", 1, 0, "x"), kLease);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(taken.status()), "RANK_TAKEN");
  EXPECT_EQ(Reason(members_.AddRank(RankJoin("gpt", 2, 0, "x"), kLease).status()),
            "STALE_GENERATION");
  members_.End("gpt");
  EXPECT_EQ(Reason(members_.AddRank(RankJoin("gpt", 1, 0, "x"), kLease).status()),
            "STALE_GENERATION");
  EXPECT_EQ(Reason(members_.CheckGeneration("none", 1)), "STALE_GENERATION");
}

TEST_F(MembershipTest, ARankThatIsGoneIsNotGivenAway) {
  FormGpt(2);
  members_.Remove(ranks_[1]);
  EXPECT_EQ(Reason(members_.AddRank(RankJoin("gpt", 1, 1, "second"), kLease).status()),
            "RANK_TAKEN");
}

TEST_F(MembershipTest, MessagesOfAnotherIncarnationAreStale) {
  FormGpt(2);
  EXPECT_TRUE(members_.CheckRank("gpt", 1, 1, "i1").ok());
  EXPECT_EQ(Reason(members_.CheckRank("gpt", 1, 1, "i0")), "STALE_GENERATION");
  EXPECT_EQ(Reason(members_.CheckRank("gpt", 1, 5, "i1")), "STALE_GENERATION");
  EXPECT_EQ(Reason(members_.CheckRank("gpt", 0, 1, "i1")), "STALE_GENERATION");
}

TEST_F(MembershipTest, MissingRanksAreNamedInRuns) {
  Generation generation;
  generation.ranks.resize(6);
  generation.ranks[1].state = State::kJoined;
  EXPECT_EQ(generation.Missing(State::kJoined), "ranks 0, 2-5");
  EXPECT_EQ(generation.CountAtLeast(State::kJoined), 1);
  for (RankMember& rank : generation.ranks) rank.state = State::kReady;
  generation.ranks[4].state = State::kGone;
  EXPECT_EQ(generation.Missing(State::kJoined), "rank 4");
  EXPECT_EQ(generation.CountAtLeast(State::kReady), 5);
}

TEST_F(MembershipTest, AllHaveReachedAStateOnlyWhileNoneFallsBack) {
  Generation generation;
  generation.ranks.resize(3);
  EXPECT_FALSE(generation.AllAtLeast(State::kJoined));
  for (const int rank : {2, 0}) {
    generation.ranks[rank].state = State::kReady;
    EXPECT_FALSE(generation.AllAtLeast(State::kJoined));
  }
  generation.ranks[0].state = State::kGone;  // after it was looked at
  generation.ranks[1].state = State::kJoined;
  EXPECT_FALSE(generation.AllAtLeast(State::kJoined));
  generation.ranks[0].state = State::kJoined;
  EXPECT_TRUE(generation.AllAtLeast(State::kJoined));
  EXPECT_TRUE(generation.AllAtLeast(State::kJoined));
  EXPECT_FALSE(generation.AllAtLeast(State::kReady));
  generation.ranks[2].state = State::kGone;
  EXPECT_FALSE(generation.AllAtLeast(State::kJoined));
}

TEST_F(MembershipTest, ALeaseEndsWithoutHeartbeats) {
  FormGpt(2);
  Pass(absl::Seconds(3));
  members_.Heard(host_);
  members_.Heard(ranks_[0]);
  Pass(absl::Seconds(2));
  EXPECT_TRUE(members_.Expired().empty());  // exactly the lease
  Pass(2 * kTick);
  EXPECT_EQ(members_.Expired(), (std::vector<MemberId>{ranks_[1]}));
  Pass(absl::Seconds(3));
  EXPECT_EQ(members_.Expired(), (std::vector<MemberId>{host_, ranks_[0], ranks_[1]}));
}

TEST_F(MembershipTest, TheCoordinatorsOwnPauseExpiresNobody) {
  FormGpt(1);
  Pass(absl::Seconds(4));
  clock_ += absl::Hours(1);
  members_.Advance(clock_);  // stopped and continued
  EXPECT_TRUE(members_.Expired().empty());
  // The pause counts as one tick: what was left of the lease still is.
  Pass(absl::Milliseconds(900));
  EXPECT_TRUE(members_.Expired().empty());
  Pass(2 * kTick);
  EXPECT_EQ(members_.Expired().size(), 2u);
}

TEST_F(MembershipTest, ASlowTickIsNoPause) {
  FormGpt(1);
  for (int i = 0; i < 6; ++i) {
    clock_ += absl::Milliseconds(900);
    members_.Advance(clock_);
  }
  EXPECT_EQ(members_.Expired().size(), 2u);
}

TEST_F(MembershipTest, AClockThatGoesBackIsIgnored) {
  const absl::Time before = members_.now();
  members_.Advance(clock_ - absl::Hours(1));
  EXPECT_EQ(members_.now(), before);
  members_.Advance(clock_ + kTick);
  EXPECT_EQ(members_.now(), before + kTick);
}

TEST_F(MembershipTest, TheHostIsSilentAfterHalfItsLease) {
  FormGpt(1);
  Pass(absl::Milliseconds(2400));
  EXPECT_FALSE(members_.HostIsSilent({"gpt", 0}));
  Pass(kTick);
  EXPECT_TRUE(members_.HostIsSilent({"gpt", 0}));
  members_.Heard(host_);
  EXPECT_FALSE(members_.HostIsSilent({"gpt", 0}));
}

TEST_F(MembershipTest, FormingRaisesTheHostsLease) {
  const MemberId host = members_.AddHost(HostJoin("node-a", 1, ""), absl::Seconds(5));
  members_.Form("gpt", {host}, 1, absl::Seconds(20));
  EXPECT_EQ(members_.FindHost(host)->lease, absl::Seconds(20));
  members_.Form("gpt", {host}, 1, absl::Seconds(1));
  EXPECT_EQ(members_.FindHost(host)->lease, absl::Seconds(20));
}

TEST_F(MembershipTest, EndLetsEverybodyGoButRemembersWhoWasThere) {
  FormGpt(2);
  const MemberId second = members_.AddHost(HostJoin("node-b", 2, "gpt"), kLease);
  const MemberId other = members_.AddHost(HostJoin("node-c", 2, ""), kLease);
  EXPECT_EQ(members_.MembersOf("gpt"),
            (std::vector<MemberId>{host_, second, ranks_[0], ranks_[1]}));
  members_.SetState({"gpt", 0}, State::kDone);
  members_.End("gpt");
  EXPECT_TRUE(members_.MembersOf("gpt").empty());
  EXPECT_EQ(members_.FindHost(host_), nullptr);
  EXPECT_FALSE(members_.FindRank(ranks_[0]).has_value());
  EXPECT_NE(members_.FindHost(other), nullptr);
  const Generation* generation = members_.FindGeneration("gpt");
  ASSERT_NE(generation, nullptr);
  EXPECT_FALSE(generation->live);
  EXPECT_EQ(generation->ranks[1].pid, 101);
  EXPECT_EQ(generation->ranks[1].state, State::kGone);
  // Nobody is left whose lease could end.
  Pass(absl::Seconds(4));
  members_.Heard(other);
  Pass(absl::Seconds(4));
  EXPECT_TRUE(members_.Expired().empty());
}

TEST_F(MembershipTest, TheEndOfAGenerationLetsItsRanksGoAndKeepsItsHosts) {
  FormGpt(2);
  members_.SetState({"gpt", 0}, RankMember::State::kDone);
  members_.EndGeneration("gpt");
  for (const MemberId rank : ranks_) EXPECT_FALSE(members_.FindRank(rank).has_value());
  EXPECT_EQ(members_.MembersOf("gpt"), (std::vector<MemberId>{host_}));
  EXPECT_EQ(members_.FindGeneration("gpt")->hosts[0].id, host_);
  EXPECT_FALSE(members_.CheckGeneration("gpt", generation_).ok());
  // It serves the job still, and is heard of.
  EXPECT_TRUE(members_.Pool().empty());
  EXPECT_TRUE(members_.Waiting("gpt").empty());
  Pass(kLease / 2);
  members_.Heard(host_);
  Pass(kLease / 2 + kTick);
  EXPECT_TRUE(members_.Expired().empty());
  // Its ranks are free in the next generation.
  EXPECT_EQ(members_.Form("gpt", {host_}, 2, kLease), generation_ + 1);
  EXPECT_TRUE(members_.AddRank(RankJoin("gpt", generation_ + 1, 0, "i0"), kLease).ok());
  EXPECT_FALSE(members_.AddRank(RankJoin("gpt", generation_, 1, "i1"), kLease).ok());
}

TEST_F(MembershipTest, AHostThatGoesBetweenGenerationsIsMissing) {
  FormGpt(1);
  members_.EndGeneration("gpt");
  members_.Remove(host_);
  EXPECT_EQ(members_.FindGeneration("gpt")->hosts[0].id, 0);
  EXPECT_EQ(members_.FindGeneration("gpt")->hosts[0].name, "node-a");
}

}  // namespace
}  // namespace tessera
