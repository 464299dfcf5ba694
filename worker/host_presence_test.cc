#include "worker/host_presence.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

v1::JoinHost Join() {
  v1::JoinHost join;
  join.set_host_name("node-a");
  join.set_incarnation("abc");
  return join;
}

v1::FormHost Form(int64_t generation, std::vector<int> ranks) {
  v1::FormHost form;
  form.set_job("gpt");
  form.set_generation(generation);
  for (const int rank : ranks) form.add_assignments()->set_rank(rank);
  return form;
}

v1::WorkerExited Exit(int rank, int code) {
  v1::WorkerExited exited;
  exited.set_rank(rank);
  exited.set_exit_code(code);
  return exited;
}

std::vector<int> Living(const v1::AttendRequest& opening) {
  const auto& ranks = opening.join_host().living_ranks();
  return {ranks.begin(), ranks.end()};
}

TEST(HostPresenceTest, AHostThatServesNoJobJoinsAsAtFirst) {
  const HostPresence presence(Join());
  for (const bool again : {false, true}) {
    const std::vector<v1::AttendRequest> opening = presence.Opening(again);
    ASSERT_EQ(opening.size(), 1u);
    EXPECT_EQ(opening[0].join_host().incarnation(), "abc");
    EXPECT_EQ(opening[0].join_host().serving_job(), "");
    EXPECT_EQ(opening[0].join_host().generation(), 0);
  }
}

TEST(HostPresenceTest, SaysWhomItServesWhoLivesAndHowTheOthersEnded) {
  HostPresence presence(Join());
  presence.Serves(Form(3, {4, 5, 6}));
  presence.Ended(Exit(5, 7));
  const std::vector<v1::AttendRequest> opening = presence.Opening(true);
  ASSERT_EQ(opening.size(), 2u);
  EXPECT_EQ(opening[0].join_host().serving_job(), "gpt");
  EXPECT_EQ(opening[0].join_host().generation(), 3);
  EXPECT_EQ(Living(opening[0]), (std::vector<int>{4, 6}));
  EXPECT_EQ(opening[1].worker_exited().rank(), 5);
  EXPECT_EQ(opening[1].worker_exited().exit_code(), 7);
}

TEST(HostPresenceTest, ANextGenerationHasAllItsRanksAgain) {
  HostPresence presence(Join());
  presence.Serves(Form(3, {4, 5}));
  presence.Ended(Exit(5, 7));
  presence.Serves(Form(4, {4, 5}));
  const std::vector<v1::AttendRequest> opening = presence.Opening(true);
  ASSERT_EQ(opening.size(), 1u);
  EXPECT_EQ(opening[0].join_host().generation(), 4);
  EXPECT_EQ(Living(opening[0]), (std::vector<int>{4, 5}));
}

}  // namespace
}  // namespace tessera
