#include "coordinator/rendezvous.h"

#include <string>
#include <vector>

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
const absl::Time kStart = absl::UnixEpoch();

v1::CommunicatorIds Ids(const std::string& unshard, const std::string& reduce) {
  v1::CommunicatorIds ids;
  ids.set_unshard_id(unshard);
  ids.set_reduce_id(reduce);
  return ids;
}

// Generation 3 of job "gpt" with two groups of two.
class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() { rendezvous_.Begin("gpt", 3, {{0, 1}, {2, 3}}); }

  absl::Status Publish(int rank, int group, const v1::CommunicatorIds& ids,
                       int64_t generation = 3) {
    return rendezvous_.Publish({"gpt", generation, rank, group}, ids);
  }
  absl::Status Fetch(int rank, int group, absl::Time now = kStart, int64_t generation = 3) {
    return rendezvous_.Fetch({"gpt", generation, rank, group}, now, kTimeout,
                             [this, rank](const absl::StatusOr<v1::CommunicatorIds>& ids) {
                               ranks_.push_back(rank);
                               given_.push_back(ids);
                             });
  }
  // Passes the answers on, as the caller does; returns how many.
  size_t Answer() {
    const std::vector<Rendezvous::Answer> answers = rendezvous_.TakeAnswers();
    for (const Rendezvous::Answer& answer : answers) answer.done(answer.ids);
    return answers.size();
  }

  Rendezvous rendezvous_;
  std::vector<int> ranks_;  // who was answered, and with what
  std::vector<absl::StatusOr<v1::CommunicatorIds>> given_;
};

TEST_F(RendezvousTest, IdsReachWhoeverWaitsOrComesLater) {
  ASSERT_TRUE(Fetch(1, 0).ok());
  EXPECT_EQ(Answer(), 0u);
  ASSERT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  EXPECT_EQ(Answer(), 1u);
  ASSERT_TRUE(Fetch(0, 0).ok());
  EXPECT_EQ(Answer(), 1u);
  ASSERT_EQ(ranks_, (std::vector<int>{1, 0}));
  for (const auto& ids : given_) {
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(ids->unshard_id(), "u");
    EXPECT_EQ(ids->reduce_id(), "r");
  }
}

TEST_F(RendezvousTest, EachGroupHasItsOwnIds) {
  ASSERT_TRUE(Fetch(3, 1).ok());
  ASSERT_TRUE(Publish(0, 0, Ids("u0", "r0")).ok());
  EXPECT_EQ(Answer(), 0u);
  ASSERT_TRUE(Publish(2, 1, Ids("u1", "r1")).ok());
  EXPECT_EQ(Answer(), 1u);
  EXPECT_EQ(given_[0]->unshard_id(), "u1");
}

TEST_F(RendezvousTest, OnlyTheFirstRankPublishesAndOnlyMembersFetch) {
  EXPECT_EQ(Publish(1, 0, Ids("u", "r")).message(),
            "rank: is 1; rank 0 publishes the ids of group 0");
  EXPECT_EQ(Publish(0, 1, Ids("u", "r")).message(),
            "rank: is 0; rank 2 publishes the ids of group 1");
  EXPECT_EQ(Fetch(1, 1).message(), "rank: is 1, which is not in group 1");
  EXPECT_EQ(Field(Fetch(1, 2)), "group");
  EXPECT_EQ(Field(Fetch(1, -1)), "group");
  EXPECT_EQ(Answer(), 0u);
}

TEST_F(RendezvousTest, IdsMustBeThereAndBounded) {
  EXPECT_EQ(Field(Publish(0, 0, Ids("", "r"))), "ids.unshard_id");
  EXPECT_EQ(Field(Publish(0, 0, Ids("u", ""))), "ids.reduce_id");
  EXPECT_EQ(Field(Publish(0, 0, Ids("u", std::string(1025, 'x')))), "ids.reduce_id");
  EXPECT_TRUE(Publish(0, 0, Ids("u", std::string(1024, 'x'))).ok());
}

TEST_F(RendezvousTest, TheSameIdsAgainAreFineAndOthersRefused) {
  ASSERT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  EXPECT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  for (const auto& other : {Ids("u", "x"), Ids("x", "r")}) {
    const absl::Status refused = Publish(0, 0, other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(Reason(refused), "IDS_PUBLISHED");
  }
  ASSERT_TRUE(Fetch(1, 0).ok());
  Answer();
  EXPECT_EQ(given_[0]->reduce_id(), "r");
}

TEST_F(RendezvousTest, StaleGenerationsAreRefused) {
  for (const int64_t generation : {2, 4}) {
    EXPECT_EQ(Reason(Publish(0, 0, Ids("u", "r"), generation)), "STALE_GENERATION");
    EXPECT_EQ(Reason(Fetch(1, 0, kStart, generation)), "STALE_GENERATION");
  }
  EXPECT_EQ(Fetch(1, 0, kStart, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reason(rendezvous_.Fetch({"other", 3, 1, 0}, kStart, kTimeout, nullptr)),
            "STALE_GENERATION");
}

TEST_F(RendezvousTest, AWaitEndsAtItsDeadlineNamingWhoDidNotPublish) {
  ASSERT_TRUE(Fetch(3, 1).ok());
  ASSERT_TRUE(Fetch(1, 0, kStart + absl::Seconds(1)).ok());
  rendezvous_.Expire(kStart + kTimeout - absl::Nanoseconds(1));
  EXPECT_EQ(Answer(), 0u);
  rendezvous_.Expire(kStart + kTimeout);
  ASSERT_EQ(Answer(), 1u);
  EXPECT_EQ(ranks_[0], 3);
  EXPECT_EQ(given_[0].status(),
            absl::DeadlineExceededError("after 30s rank 2 had not published the communicator ids "
                                        "of group 1 of job gpt"));
  // What comes late is for those that still wait, and nobody is answered twice.
  ASSERT_TRUE(Publish(2, 1, Ids("u", "r")).ok());
  EXPECT_EQ(Answer(), 0u);
  ASSERT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  EXPECT_EQ(Answer(), 1u);
}

TEST_F(RendezvousTest, TheEndOfTheGenerationEndsWaitsAndDropsTheIds) {
  ASSERT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  ASSERT_TRUE(Fetch(3, 1).ok());
  rendezvous_.End("other", "nothing to do with it");
  EXPECT_EQ(Answer(), 0u);
  rendezvous_.End("gpt", "rank 2 was killed");
  ASSERT_EQ(Answer(), 1u);
  EXPECT_EQ(given_[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Reason(given_[0].status()), "GENERATION_ENDED");
  EXPECT_EQ(given_[0].status().message(),
            "generation 3 has ended (rank 2 was killed) and rank 2 had not published the "
            "communicator ids of group 1 of job gpt");
  EXPECT_EQ(Reason(Fetch(1, 0)), "STALE_GENERATION");
  rendezvous_.Begin("gpt", 4, {{0, 1}});
  ASSERT_TRUE(Fetch(1, 0, kStart, 4).ok());
  EXPECT_EQ(Answer(), 0u);  // the old ids are gone
  ASSERT_TRUE(Publish(0, 0, Ids("new", "new"), 4).ok());
  EXPECT_EQ(Answer(), 1u);
}

TEST_F(RendezvousTest, ARankThatAsksAgainEndsItsFirstWait) {
  ASSERT_TRUE(Fetch(1, 0).ok());
  ASSERT_TRUE(Fetch(1, 0, kStart + absl::Seconds(20)).ok());
  ASSERT_EQ(Answer(), 1u);
  EXPECT_EQ(given_[0].status(),
            absl::AbortedError("rank 1 has asked again for its group's communicator ids"));
  rendezvous_.Expire(kStart + kTimeout);  // the first one's deadline
  EXPECT_EQ(Answer(), 0u);
  ASSERT_TRUE(Publish(0, 0, Ids("u", "r")).ok());
  EXPECT_EQ(Answer(), 1u);
  EXPECT_TRUE(given_[1].ok());
}

}  // namespace
}  // namespace tessera
