#include "client/process_usage.h"

#include <unistd.h>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr char kStatus[] = "Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t    2048 kB\nThreads:\t7\n";

TEST(ProcessUsageTest, AddsUserAndKernelTime) {
  // A program may be called "a) 1 (b".
  const absl::StatusOr<ProcessUsage> usage = ParseProcessUsage(
      "42 (a) 1 (b) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 7 0 100 0 0", kStatus, 100);
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->cpu_seconds, 2.0);
  EXPECT_EQ(usage->peak_rss_bytes, 2 << 20);
  EXPECT_EQ(usage->threads, 7);
}

TEST(ProcessUsageTest, RefusesWhatLinuxDoesNotWrite) {
  const char* const good = "42 (a) S 1 42 42 0 -1 4194304 100 0 0 0 150 50 0";
  EXPECT_TRUE(ParseProcessUsage(good, kStatus, 100).ok());
  EXPECT_TRUE(absl::IsInternal(ParseProcessUsage("42 (a) S 1 42", kStatus, 100).status()));
  EXPECT_TRUE(absl::IsInternal(ParseProcessUsage("", kStatus, 100).status()));
  EXPECT_TRUE(absl::IsInternal(ParseProcessUsage(good, "Threads:\t7\n", 100).status()));
}

TEST(ProcessUsageTest, ReadsThisProcess) {
  const absl::StatusOr<ProcessUsage> usage = ReadProcessUsage(getpid());
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_GT(usage->peak_rss_bytes, 1 << 20);
  EXPECT_GE(usage->threads, 1);
  EXPECT_GE(usage->cpu_seconds, 0);
}

TEST(ProcessUsageTest, SaysThatAProcessIsNot) {
  EXPECT_TRUE(absl::IsNotFound(ReadProcessUsage(1 << 30).status()));
}

}  // namespace
}  // namespace tessera
