#include "common/rank_list.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(RankListTest, FoldsRuns) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1}), "ranks 0-1");
  EXPECT_EQ(RankList({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
}

}  // namespace
}  // namespace tessera
