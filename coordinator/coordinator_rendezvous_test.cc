// Communicator ids through the coordinator: who may speak, and how waits end.
#include <optional>
#include <string>

#include "common/errors.h"
#include "coordinator/coordinator_test_fixture.h"

namespace tessera {
namespace {

class CoordinatorRendezvousTest : public CoordinatorFixture {
 protected:
  absl::Status Publish(int rank, const std::string& ids, const std::string& incarnation = "",
                       int64_t generation = 1) {
    v1::PublishCommunicatorIdsRequest request;
    request.set_job("gpt");
    request.set_generation(generation);
    request.set_rank(rank);
    request.set_incarnation(incarnation.empty() ? absl::StrCat("i", rank) : incarnation);
    request.mutable_ids()->set_unshard_id("unshard " + ids);
    request.mutable_ids()->set_reduce_id("reduce " + ids);
    return coordinator_.PublishCommunicatorIds(request);
  }
  absl::Status Fetch(int rank, const std::string& incarnation = "", int64_t generation = 1) {
    v1::FetchCommunicatorIdsRequest request;
    request.set_job("gpt");
    request.set_generation(generation);
    request.set_rank(rank);
    request.set_incarnation(incarnation.empty() ? absl::StrCat("i", rank) : incarnation);
    return coordinator_.FetchCommunicatorIds(
        request, [this](const absl::StatusOr<v1::CommunicatorIds>& ids) {
          Get("gpt");  // the lock is not held
          answer_ = ids;
          ++answers_;
        });
  }

  std::optional<absl::StatusOr<v1::CommunicatorIds>> answer_;
  int answers_ = 0;
};

TEST_F(CoordinatorRendezvousTest, IdsGoFromTheFirstRankToTheOthers) {
  StartGpt(2);
  ASSERT_TRUE(Fetch(1).ok());
  EXPECT_EQ(answers_, 0);
  ASSERT_TRUE(Publish(0, "a").ok());
  ASSERT_EQ(answers_, 1);
  ASSERT_TRUE(answer_->ok()) << answer_->status();
  EXPECT_EQ((*answer_)->unshard_id(), "unshard a");
  EXPECT_EQ((*answer_)->reduce_id(), "reduce a");
  ASSERT_TRUE(Fetch(1).ok());
  EXPECT_EQ(answers_, 2);
}

TEST_F(CoordinatorRendezvousTest, RanksMayMeetBeforeTheJobRuns) {
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  JoinHost("node-a", 2, "gpt");
  JoinRank("gpt", 1, 1);
  ASSERT_TRUE(Fetch(1).ok());
  EXPECT_EQ(Reason(Publish(0, "a")), "STALE_GENERATION");  // has not joined
  JoinRank("gpt", 1, 0);
  ASSERT_TRUE(Publish(0, "a").ok());
  EXPECT_EQ(answers_, 1);
}

TEST_F(CoordinatorRendezvousTest, OldGenerationsAndIncarnationsAreRefused) {
  EXPECT_EQ(Publish(0, "a").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Fetch(0).code(), absl::StatusCode::kNotFound);
  StartGpt(2);
  EXPECT_EQ(Reason(Publish(0, "a", "an older process")), "STALE_GENERATION");
  EXPECT_EQ(Reason(Publish(0, "a", "", 2)), "STALE_GENERATION");
  EXPECT_EQ(Reason(Fetch(1, "an older process")), "STALE_GENERATION");
  EXPECT_EQ(Reason(Fetch(1, "", 0)), "STALE_GENERATION");
  EXPECT_EQ(Reason(Fetch(2)), "STALE_GENERATION");  // no such rank
  EXPECT_EQ(Field(Publish(1, "a")), "rank");
  EXPECT_EQ(answers_, 0);
}

TEST_F(CoordinatorRendezvousTest, OtherIdsForTheSameGroupAreRefused) {
  StartGpt(2);
  ASSERT_TRUE(Publish(0, "a").ok());
  EXPECT_TRUE(Publish(0, "a").ok());
  EXPECT_EQ(Reason(Publish(0, "b")), "IDS_PUBLISHED");
}

TEST_F(CoordinatorRendezvousTest, AWaitEndsAfterTimeoutsCollective) {
  v1::JobSpec spec = Spec("gpt", 2, 2);
  spec.mutable_timeouts()->mutable_collective()->set_seconds(7);
  ASSERT_TRUE(Create(spec).ok());
  const std::vector<Member> all = {JoinHost("node-a", 2, "gpt"), JoinRank("gpt", 1, 0),
                                   JoinRank("gpt", 1, 1)};
  ASSERT_TRUE(Fetch(1).ok());
  Pass(absl::Milliseconds(6900), all);
  EXPECT_EQ(answers_, 0);
  Pass(absl::Milliseconds(200), all);
  ASSERT_EQ(answers_, 1);
  EXPECT_EQ(answer_->status(),
            absl::DeadlineExceededError(
                "after 7s rank 0 had not published the communicator ids of group 0 of job gpt"));
}

TEST_F(CoordinatorRendezvousTest, AWaitEndsWithTheGeneration) {
  StartGpt(2);
  ASSERT_TRUE(Fetch(1).ok());
  WorkerExited(agent_, 0, 0, 9);
  Pass(absl::Milliseconds(400), {agent_});
  ASSERT_EQ(answers_, 1);
  EXPECT_EQ(Reason(answer_->status()), "GENERATION_ENDED");
  EXPECT_EQ(answer_->status().message(),
            "generation 1 has ended (rank 0 on host node-a was killed by signal 9 (SIGKILL)) and "
            "rank 0 had not published the communicator ids of group 0 of job gpt");
  EXPECT_EQ(Reason(Fetch(1)), "STALE_GENERATION");
}

TEST_F(CoordinatorRendezvousTest, TheNextJobOfANameHasNoneOfTheOldIds) {
  StartGpt(2);
  ASSERT_TRUE(Publish(0, "a").ok());
  ASSERT_TRUE(coordinator_.CancelJob("gpt", "enough").ok());
  ASSERT_TRUE(Create(Spec("gpt", 2, 2)).ok());
  JoinHost("node-b", 2, "gpt");
  for (const int rank : {0, 1}) JoinRank("gpt", 2, rank);
  ASSERT_TRUE(Fetch(1, "", 2).ok());
  EXPECT_EQ(answers_, 0);
  ASSERT_TRUE(Publish(0, "b", "", 2).ok());
  EXPECT_EQ((*answer_)->unshard_id(), "unshard b");
}

TEST_F(CoordinatorRendezvousTest, ShutdownEndsWaits) {
  StartGpt(2);
  ASSERT_TRUE(Fetch(1).ok());
  coordinator_.Shutdown();
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(answer_->status().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace tessera
