#include "common/philox.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

// The known-answer vectors that the Random123 distribution publishes for philox4x32 with 10 rounds.
TEST(PhiloxTest, MatchesPublishedKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, StreamPutsSeedInKeyAndIndexAndStreamInCounter) {
  const RandomStream stream(0x299f31d0a4093822, 0x0370734413198a2e);
  EXPECT_EQ(stream.Block(0x85a308d3243f6a88),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Published test vectors of FNV-1a, 64 bits.
TEST(PhiloxTest, StreamIdIsFnv1a) {
  EXPECT_EQ(StreamId(""), 0xcbf29ce484222325u);
  EXPECT_EQ(StreamId("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(StreamId("foobar"), 0x85944171f73967e8u);
}

TEST(PhiloxTest, BelowScalesTheFirst64Bits) {
  // Block 0 of seed 0 and stream 0 begins 0x6627e8d5, 0xe169c58d: the 64-bit word
  // 0xe169c58d6627e8d5 is 0.88051 of 2^64.
  const RandomStream stream(0, 0);
  EXPECT_EQ(stream.Below(0, 1), 0u);
  EXPECT_EQ(stream.Below(0, 100), 88u);
  EXPECT_EQ(stream.Below(0, uint64_t{1} << 32), 0xe169c58du);
}

TEST(PhiloxTest, BelowReachesEveryValueEvenly) {
  const RandomStream stream(7, StreamId("evenly"));
  std::vector<int> counts(10, 0);
  for (uint64_t i = 0; i < 100000; ++i) ++counts[stream.Below(i, 10)];
  // 10,000 each with a standard deviation of 95.
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

}  // namespace
}  // namespace tessera
