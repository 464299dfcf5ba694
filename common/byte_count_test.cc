#include "common/byte_count.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ByteCountTest, ReadsNumbersWithUnits) {
  const struct {
    const char* text;
    int64_t bytes;
  } cases[] = {{"0", 0},
               {"1048576", 1048576},
               {"16MiB", 16777216},
               {"80GiB", 85899345920},
               {"80 GiB", 85899345920},
               {"1.5KiB", 1536},
               {"2kB", 2000},
               {"24GB", 24000000000},
               {"7B", 7},
               {"1TiB", 1099511627776},
               {"2PiB", int64_t{2} << 50},
               {"1EiB", int64_t{1} << 60}};
  for (const auto& expected : cases) {
    const absl::StatusOr<int64_t> bytes = ParseByteCount(expected.text);
    ASSERT_TRUE(bytes.ok()) << expected.text;
    EXPECT_EQ(*bytes, expected.bytes) << expected.text;
  }
}

TEST(ByteCountTest, RefusesWhatIsNoNumberOfBytes) {
  for (const char* text : {"", "MiB", "-1", "-1MiB", "1.2.3MiB", "16mib", "16 M", "1e3", "nan",
                           "8388608TiB", "9223372036854775808"}) {
    const absl::StatusOr<int64_t> bytes = ParseByteCount(text);
    ASSERT_FALSE(bytes.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(bytes.status())) << text;
  }
}

TEST(ByteCountTest, WritesTheLargestUnitThatLeavesOne) {
  EXPECT_EQ(FormatByteCount(0), "0 B");
  EXPECT_EQ(FormatByteCount(1000), "1000 B");
  EXPECT_EQ(FormatByteCount(1536), "1.5 KiB");
  EXPECT_EQ(FormatByteCount(67108864), "64 MiB");
  EXPECT_EQ(FormatByteCount(85899345920), "80 GiB");
  EXPECT_EQ(FormatByteCount(int64_t{3} << 50), "3 PiB");
  EXPECT_EQ(FormatByteCount(int64_t{1} << 61), "2 EiB");
}

}  // namespace
}  // namespace tessera
