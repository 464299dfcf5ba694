#include "coordinator/rank_positions.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/proto_time.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

std::string Name(int unit) { return absl::StrCat("h.", unit); }

v1::Position At(v1::Activity activity, int unit, v1::Operation operation, int64_t sequence,
                absl::Duration time = absl::ZeroDuration()) {
  v1::Position position;
  position.set_step(12);
  position.set_activity(activity);
  position.set_unit(unit);
  position.set_operation(operation);
  position.set_sequence(sequence);
  SetDuration(time, position.mutable_time());
  return position;
}

v1::Position Vote(int64_t sequence) {
  v1::Position position = At(v1::WAITING, -1, v1::OPERATION_UNSPECIFIED, sequence);
  position.set_what("the commit vote of step 12");
  return position;
}

class RankPositionsTest : public ::testing::Test {
 protected:
  RankPositions positions_{/*ranks=*/4, /*units=*/3, /*silent_after=*/absl::Seconds(2)};
};

TEST_F(RankPositionsTest, SaysWhatARankDoesAndForHowLong) {
  positions_.Record(0, At(v1::COMPUTING, 1, v1::FORWARD, 37, absl::Milliseconds(400)), kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart + absl::Seconds(1)),
            "computes on unit h.1 (forward) in step 12 for 1.4s, operation 37");
  positions_.Record(0, At(v1::WAITING, 2, v1::REDUCE, 40), kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart),
            "waits in reduce of unit h.2 in step 12 for 0.0s, operation 40");
  positions_.Record(0, At(v1::WORKING, 2, v1::OPTIMIZER, 40), kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart),
            "works on optimizer of unit h.2 in step 12 for 0.0s, operation 40");
  positions_.Record(0, Vote(41), kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart),
            "waits in the commit vote of step 12 in step 12 for 0.0s, operation 41");
  v1::Position first = At(v1::COMPUTING, -1, v1::OPERATION_UNSPECIFIED, 0);
  first.set_step(0);
  positions_.Record(0, first, kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart), "computes, on no unit yet for 0.0s");
}

TEST_F(RankPositionsTest, SaysWhatASilentRankDidAndThatItIsSilent) {
  positions_.Record(1, At(v1::COMPUTING, 0, v1::BACKWARD, 9), kStart);
  EXPECT_EQ(positions_.Describe(1, Name, kStart + absl::Seconds(2)),
            "computes on unit h.0 (backward) in step 12 for 2.0s, operation 9");
  EXPECT_EQ(positions_.Describe(1, Name, kStart + absl::Milliseconds(3100)),
            "computes on unit h.0 (backward) in step 12 for 3.1s, operation 9, not heard of for "
            "3.1s");
}

TEST_F(RankPositionsTest, SaysNothingOfWhomItHasNotHeard) {
  EXPECT_EQ(positions_.Describe(2, Name, kStart), "");
  EXPECT_EQ(positions_.Describe(17, Name, kStart), "");
  EXPECT_EQ(positions_.DescribeAll(3, Name, kStart).back(), "rank 2: has not said");
}

// A worker may be of another build, or broken.
TEST_F(RankPositionsTest, IgnoresNonsense) {
  positions_.Record(4, At(v1::WAITING, 0, v1::REDUCE, 1), kStart);
  positions_.Record(-1, At(v1::WAITING, 0, v1::REDUCE, 1), kStart);
  positions_.Record(0, At(v1::WAITING, 3, v1::REDUCE, 1), kStart);
  positions_.Record(0, At(v1::WAITING, -2, v1::REDUCE, 1), kStart);
  positions_.Record(0, At(static_cast<v1::Activity>(77), 0, v1::REDUCE, 1), kStart);
  positions_.Record(0, At(v1::WAITING, 0, static_cast<v1::Operation>(77), 1), kStart);
  positions_.Record(0, At(v1::WAITING, 0, v1::REDUCE, -1), kStart);
  positions_.Record(0, At(v1::WAITING, 0, v1::REDUCE, 1, -absl::Seconds(1)), kStart);
  positions_.Record(0, v1::Position(), kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart), "");
  v1::Position verbose = Vote(1);
  verbose.set_what(std::string(5000, 'x'));
  positions_.Record(0, verbose, kStart);
  EXPECT_EQ(positions_.Describe(0, Name, kStart),
            absl::StrCat("waits in ", std::string(120, 'x'), " in step 12 for 0.0s, operation 1"));
}

TEST_F(RankPositionsTest, NamesTheRankThatTheOthersWaitFor) {
  positions_.Record(1, At(v1::COMPUTING, 0, v1::FORWARD, 37, absl::Milliseconds(300)), kStart);
  const absl::Time now = kStart + absl::Seconds(3);
  for (const int rank : {0, 2, 3}) {
    positions_.Record(rank, At(v1::WAITING, 1, v1::REDUCE, 40, absl::Milliseconds(2000 + rank)),
                      now);
  }
  const auto stuck = positions_.FindStuck({}, Name, now);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->ranks, std::vector<int>({1}));
  EXPECT_EQ(stuck->unit, 1);
  EXPECT_EQ(stuck->operation, v1::REDUCE);
  EXPECT_EQ(stuck->sentence,
            "rank 1 computes on unit h.0 (forward) in step 12 for 3.3s, operation 37, not heard of "
            "for 3.0s; meanwhile ranks 0, 2-3 have waited 2.0s in reduce of unit h.1 (operation "
            "40)");
}

// Of two stopped ranks one may have been in a wait itself, which it does not leave any more.
TEST_F(RankPositionsTest, NamesEveryRankThatDoesNotCome) {
  positions_.Record(1, At(v1::WAITING, 0, v1::UNSHARD, 38), kStart);
  positions_.Record(3, At(v1::COMPUTING, 0, v1::FORWARD, 38), kStart);
  const absl::Time now = kStart + absl::Seconds(5);
  positions_.Record(0, At(v1::WAITING, 1, v1::UNSHARD, 39), now);
  positions_.Record(2, At(v1::WAITING, 1, v1::UNSHARD, 39), now);
  const auto stuck = positions_.FindStuck({3}, Name, now);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->ranks, std::vector<int>({1, 3}));
  EXPECT_TRUE(absl::StrContains(stuck->sentence, "rank 1 waits in unshard of unit h.0"));
  EXPECT_TRUE(absl::StrContains(stuck->sentence, "; rank 3 computes on unit h.0"));
}

// Ranks that wait for different things all wait for the one that is missing.
TEST_F(RankPositionsTest, DoesNotNameThoseThatWaitFurtherBack) {
  positions_.Record(0, At(v1::WAITING, 1, v1::REDUCE, 40), kStart);
  positions_.Record(1, At(v1::WAITING, 2, v1::REDUCE, 39), kStart);
  positions_.Record(2, At(v1::COMPUTING, 2, v1::BACKWARD, 38), kStart);
  const auto stuck = positions_.FindStuck({}, Name, kStart + absl::Seconds(1));
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->ranks, std::vector<int>({2}));
  EXPECT_TRUE(absl::EndsWith(stuck->sentence,
                             "rank 0 has waited 1.0s in reduce of unit h.1 (operation 40)"));
}

// It has entered the operation and does not leave it: only the blame names it.
TEST_F(RankPositionsTest, NamesABlamedRankThatHasEntered) {
  positions_.Record(0, Vote(41), kStart);
  positions_.Record(1, Vote(41), kStart);
  const auto stuck = positions_.FindStuck({1}, Name, kStart + absl::Seconds(1));
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->ranks, std::vector<int>({1}));
  EXPECT_EQ(stuck->unit, -1);
  EXPECT_EQ(stuck->operation, v1::OPERATION_UNSPECIFIED);
  EXPECT_TRUE(absl::EndsWith(stuck->sentence,
                             "has waited 1.0s in the commit vote of step 12 (operation "
                             "41)"));
}

// A rank that gave up waiting is heard again, as it waits for the next generation, before it is
// decided what ended this one.
TEST_F(RankPositionsTest, ARankThatHasGivenUpStaysWhereItWaited) {
  positions_.Record(1, At(v1::COMPUTING, 0, v1::FORWARD, 37), kStart);
  positions_.Record(0, At(v1::WAITING, 1, v1::REDUCE, 40, absl::Seconds(3)), kStart);
  positions_.Record(0, At(v1::REJOINING, -1, v1::OPERATION_UNSPECIFIED, 40), kStart);
  const auto stuck = positions_.FindStuck({1}, Name, kStart);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_TRUE(absl::EndsWith(stuck->sentence,
                             "rank 0 has waited 3.0s in reduce of unit h.1 (operation 40)"));
  // Of one that has not said anything yet it is better than nothing.
  positions_.Record(2, At(v1::REJOINING, -1, v1::OPERATION_UNSPECIFIED, 0), kStart);
  EXPECT_EQ(positions_.Describe(2, Name, kStart),
            "waits for the next generation in step 12 for 0.0s");
}

TEST_F(RankPositionsTest, NobodyIsStuckWhereNobodyWaits) {
  EXPECT_FALSE(positions_.FindStuck({1}, Name, kStart).has_value());
  positions_.Record(0, At(v1::COMPUTING, 1, v1::FORWARD, 40), kStart);
  EXPECT_FALSE(positions_.FindStuck({1}, Name, kStart).has_value());
  // All wait for each other's next words.
  positions_.Record(0, Vote(41), kStart);
  EXPECT_FALSE(positions_.FindStuck({}, Name, kStart).has_value());
}

TEST_F(RankPositionsTest, CountsRanksBeyondTheEighth) {
  RankPositions many(/*ranks=*/20, /*units=*/3, absl::Seconds(2));
  for (int rank = 0; rank < 19; ++rank)
    many.Record(rank, At(v1::COMPUTING, 0, v1::FORWARD, 1), kStart);
  many.Record(19, At(v1::WAITING, 0, v1::REDUCE, 2), kStart);
  const auto stuck = many.FindStuck({}, Name, kStart);
  ASSERT_TRUE(stuck.has_value());
  EXPECT_EQ(stuck->ranks.size(), 19u);
  EXPECT_TRUE(
      absl::StrContains(stuck->sentence, "; 11 more do not come either; meanwhile rank 19"));
}

}  // namespace
}  // namespace tessera
