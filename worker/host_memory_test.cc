#include "worker/host_memory.h"

#include <gtest/gtest.h>

#include <map>

namespace tessera {
namespace {

FileReader Files(std::map<std::string, std::string> files) {
  return [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
}

TEST(HostMemoryTest, ParsesMemAvailable) {
  EXPECT_EQ(ParseMemAvailable("MemTotal:        8000 kB\n"
                              "MemFree:         1000 kB\n"
                              "MemAvailable:    3000 kB\n"),
            3072000);
  EXPECT_EQ(ParseMemAvailable("MemFree: 1000 kB\n"), std::nullopt);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: many kB\n"), std::nullopt);
  EXPECT_EQ(ParseMemAvailable("MemAvailable: 9223372036854775807 kB\n"), std::nullopt);
  EXPECT_EQ(ParseMemAvailable(""), std::nullopt);
}

TEST(HostMemoryTest, ParsesCgroupPathsOfBothVersions) {
  const CgroupPaths hybrid = ParseCgroupPaths(
      "9:name=systemd:/\n"
      "4:cpu,memory:/pod/a:b\n"
      "0::/system.slice\n");
  EXPECT_EQ(hybrid.v1_memory, "/pod/a:b");
  EXPECT_EQ(hybrid.v2, "/system.slice");
  const CgroupPaths v2_only = ParseCgroupPaths("0::/\n");
  EXPECT_EQ(v2_only.v1_memory, std::nullopt);
  EXPECT_EQ(v2_only.v2, "/");
  const CgroupPaths none = ParseCgroupPaths("4:cpu:/\nnonsense\n");
  EXPECT_EQ(none.v1_memory, std::nullopt);
  EXPECT_EQ(none.v2, std::nullopt);
}

TEST(HostMemoryTest, ParsesLimitsAndWaysToSayThereIsNone) {
  EXPECT_EQ(ParseCgroupBytes("1048576\n"), 1048576);
  EXPECT_EQ(ParseCgroupBytes("0\n"), 0);
  EXPECT_EQ(ParseCgroupBytes("max\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupBytes("9223372036854771712\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupBytes("-1\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupBytes(""), std::nullopt);
}

TEST(HostMemoryTest, ParsesStatValuesByWholeKey) {
  const std::string stat = "inactive_file 10\ntotal_inactive_file 20\nactive_file x\n";
  EXPECT_EQ(ParseStatValue(stat, "inactive_file"), 10);
  EXPECT_EQ(ParseStatValue(stat, "total_inactive_file"), 20);
  EXPECT_EQ(ParseStatValue(stat, "active_file"), std::nullopt);
  EXPECT_EQ(ParseStatValue(stat, "file"), std::nullopt);
}

TEST(HostMemoryTest, CountsReclaimableCacheAsFree) {
  const HostMemory memory = ReadHostMemory(
      Files({{"/proc/self/cgroup", "0::/job\n"},
             {"/sys/fs/cgroup/job/memory.max", "1000\n"},
             {"/sys/fs/cgroup/job/memory.current", "900\n"},
             {"/sys/fs/cgroup/job/memory.stat", "inactive_file 300\nactive_file 50\n"}}));
  EXPECT_EQ(memory.cgroup_free_bytes, 450);  // 1000 - (900 - 300 - 50)
  EXPECT_EQ(memory.cgroup_limit_bytes, 1000);
  EXPECT_EQ(memory.cgroup, "/sys/fs/cgroup/job");
}

TEST(HostMemoryTest, TakesTheTightestAncestor) {
  const HostMemory memory = ReadHostMemory(Files({{"/proc/self/cgroup", "0::/a/b\n"},
                                                  {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                                                  {"/sys/fs/cgroup/a/b/memory.current", "100\n"},
                                                  {"/sys/fs/cgroup/a/memory.max", "500\n"},
                                                  {"/sys/fs/cgroup/a/memory.current", "200\n"}}));
  EXPECT_EQ(memory.cgroup_free_bytes, 300);
  EXPECT_EQ(memory.cgroup, "/sys/fs/cgroup/a");
}

TEST(HostMemoryTest, FindsTheContainersGroupAtTheMountOfVersion1) {
  const HostMemory memory =
      ReadHostMemory(Files({{"/proc/self/cgroup", "4:memory:/docker/0123\n"},
                            {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"},
                            {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n"},
                            {"/sys/fs/cgroup/memory/memory.stat",
                             "inactive_file 1\ntotal_inactive_file 1000\ntotal_active_file 0\n"}}));
  EXPECT_EQ(memory.cgroup_free_bytes, 96);  // 4096 - (5000 - 1000)
}

TEST(HostMemoryTest, AHostWithoutFilesHasNoLimit) {
  const HostMemory memory = ReadHostMemory(Files({}));
  EXPECT_EQ(memory.available_bytes, std::nullopt);
  EXPECT_EQ(memory.cgroup_free_bytes, std::nullopt);
  EXPECT_TRUE(CheckHostMemory(INT64_MAX, memory).ok());
}

TEST(HostMemoryTest, RefusesWithBothFigures) {
  HostMemory memory;
  memory.available_bytes = 1000;
  EXPECT_TRUE(CheckHostMemory(1000, memory).ok());
  const absl::Status available = CheckHostMemory(1001, memory);
  EXPECT_EQ(available.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(available.message().find("1001 bytes"), absl::string_view::npos) << available;
  EXPECT_NE(available.message().find("1000 are available"), absl::string_view::npos) << available;

  memory.cgroup_free_bytes = 600;
  memory.cgroup_limit_bytes = 900;
  memory.cgroup = "/sys/fs/cgroup/job";
  EXPECT_TRUE(CheckHostMemory(600, memory).ok());
  const absl::Status limited = CheckHostMemory(601, memory);
  EXPECT_EQ(limited.code(), absl::StatusCode::kResourceExhausted);
  for (const char* part : {"601 bytes", "600 are left", "limit of 900", "/sys/fs/cgroup/job"}) {
    EXPECT_NE(limited.message().find(part), absl::string_view::npos) << limited;
  }
}

}  // namespace
}  // namespace tessera
