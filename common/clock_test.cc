#include "common/clock.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(PollTimeoutTest, RoundsUpAndStaysWithinWhatPollTakes) {
  EXPECT_EQ(PollTimeout(absl::ZeroDuration()), 0);
  EXPECT_EQ(PollTimeout(absl::Nanoseconds(1)), 1);
  EXPECT_EQ(PollTimeout(absl::Milliseconds(7)), 7);
  EXPECT_EQ(PollTimeout(absl::Microseconds(7001)), 8);
  EXPECT_EQ(PollTimeout(-absl::Seconds(5)), 0);
  EXPECT_EQ(PollTimeout(-absl::InfiniteDuration()), 0);
  EXPECT_EQ(PollTimeout(absl::Hours(24 * 365)), 1 << 30);
}

// Once one millisecond was added to for ever, which overflowed into a wait of none at all.
TEST(PollTimeoutTest, ForEverIsLong) { EXPECT_EQ(PollTimeout(absl::InfiniteDuration()), 1 << 30); }

}  // namespace
}  // namespace tessera
