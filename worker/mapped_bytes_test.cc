#include "worker/mapped_bytes.h"

#include <sstream>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(MappedBytesTest, CountsOurMemoryFilesByNameAndLength) {
  std::istringstream maps(
      "7f0000000000-7f0000003000 rw-s 00000000 00:01 12 /memfd:tessera-control (deleted)\n"
      "7f0000010000-7f0000011000 rw-s 00000000 00:01 13 /memfd:tessera-rank-0 (deleted)\n"
      "7f0000020000-7f0000021000 rw-s 00000000 00:01 14 /memfd:other (deleted)\n"
      "7f0000030000-7f0000031000 r-xp 00000000 00:01 15 /usr/bin/tessera-worker\n");
  EXPECT_EQ(*SumMappedBytes(maps), 0x4000);
}

TEST(MappedBytesTest, ThisProcessHasNone) { EXPECT_EQ(*MeasureMappedBytes(), 0); }

}  // namespace
}  // namespace tessera
