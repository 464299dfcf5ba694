#include "worker/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace tessera {
namespace {

// Bytes of this process's mappings of the memory file `name`, and how many mappings there are.
struct Mapped {
  int64_t bytes = 0;
  int mappings = 0;
};

Mapped FindMapped(const std::string& name) {
  Mapped mapped;
  std::ifstream smaps("/proc/self/smaps");
  const std::string path = "/memfd:" + name + " (deleted)";
  for (std::string line; std::getline(smaps, line);) {
    if (line.find(path) == std::string::npos) continue;
    unsigned long long begin = 0, end = 0;
    EXPECT_EQ(sscanf(line.c_str(), "%llx-%llx", &begin, &end), 2) << line;
    mapped.bytes += static_cast<int64_t>(end - begin);
    ++mapped.mappings;
  }
  return mapped;
}

TEST(MemoryFileTest, RoundsItsLengthUpToAPageAndShowsItInSmaps) {
  absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-unsharded", 4097);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), 8192);
  {
    absl::StatusOr<MemoryMapping> mapping = file->Map();
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_EQ(mapping->bytes(), 8192);
    const Mapped mapped = FindMapped("tessera-unsharded");
    EXPECT_EQ(mapped.bytes, 8192);
    EXPECT_EQ(mapped.mappings, 1);
  }
  EXPECT_EQ(FindMapped("tessera-unsharded").mappings, 0);
}

TEST(MemoryFileTest, IsAllocatedAndZeroFromTheStart) {
  absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-control", 3 * 4096);
  ASSERT_TRUE(file.ok()) << file.status();
  struct stat status;
  ASSERT_EQ(fstat(file->fd(), &status), 0);
  EXPECT_EQ(status.st_blocks * 512, 3 * 4096);
  absl::StatusOr<MemoryMapping> mapping = file->Map();
  ASSERT_TRUE(mapping.ok());
  for (int64_t i = 0; i < mapping->bytes(); ++i) ASSERT_EQ(mapping->data()[i], 0) << i;
}

TEST(MemoryFileTest, MappingsShareBytesAndOutliveTheFile) {
  absl::StatusOr<MemoryMapping> first, second;
  {
    absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-rank-0", 100);
    ASSERT_TRUE(file.ok());
    absl::StatusOr<MemoryFile> other = MemoryFile::FromFd(UniqueFd(dup(file->fd())));
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->bytes(), 4096);
    first = file->Map();
    second = other->Map();
  }
  ASSERT_TRUE(first.ok() && second.ok());
  strcpy(first->data(), "mosaic");
  EXPECT_STREQ(second->data(), "mosaic");
}

TEST(MemoryFileTest, SealsItsLength) {
  absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-gradient", 4096);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(fcntl(file->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(ftruncate(file->fd(), 0), -1);
  EXPECT_EQ(ftruncate(file->fd(), 8192), -1);
  EXPECT_EQ(fcntl(file->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
  // Not inherited by programs that a worker starts.
  EXPECT_EQ(fcntl(file->fd(), F_GETFD), FD_CLOEXEC);
}

TEST(MemoryFileTest, AnEmptyFileMapsNothing) {
  absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-gradient", 0);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), 0);
  absl::StatusOr<MemoryMapping> mapping = file->Map();
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->data(), nullptr);
  EXPECT_EQ(mapping->bytes(), 0);
}

TEST(MemoryFileTest, SaysHowMuchThereWasNoRoomFor) {
  // 4 EiB: more than any machine has.
  const int64_t bytes = int64_t{1} << 62;
  const absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-unsharded", bytes);
  ASSERT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted) << file.status();
  EXPECT_NE(file.status().message().find("tessera-unsharded of 4611686018427387904 bytes"),
            absl::string_view::npos)
      << file.status();
}

TEST(MemoryFileTest, ReportsWhatTheKernelRefuses) {
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit limit = {8192, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::StatusOr<MemoryFile> fits = MemoryFile::Create("x", 8192);
  const absl::StatusOr<MemoryFile> too_long = MemoryFile::Create("x", 8193);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fits.ok()) << fits.status();
  EXPECT_EQ(too_long.status().code(), absl::StatusCode::kResourceExhausted) << too_long.status();
}

TEST(MemoryFileTest, RefusesLengthsAndNamesThatAreNone) {
  EXPECT_EQ(MemoryFile::Create("x", -1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryFile::Create("x", INT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryFile::Create(std::string(201, 'x'), 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MemoryFileTest, RefusesDescriptorsOfOtherFiles) {
  EXPECT_EQ(MemoryFile::FromFd(UniqueFd(open("/dev/null", O_RDWR))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryFile::FromFd(UniqueFd(memfd_create("x", MFD_ALLOW_SEALING))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryFile::FromFd(UniqueFd()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryFileTest, AMovedMappingLeavesNothingBehind) {
  absl::StatusOr<MemoryFile> file = MemoryFile::Create("tessera-move", 4096);
  ASSERT_TRUE(file.ok());
  MemoryMapping first = *file->Map();
  MemoryMapping second = *file->Map();
  EXPECT_EQ(FindMapped("tessera-move").bytes, 8192);
  first = std::move(second);
  EXPECT_EQ(FindMapped("tessera-move").bytes, 4096);
  EXPECT_EQ(second.data(), nullptr);
}

}  // namespace
}  // namespace tessera
