#include "worker/host_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

// Version 1 says "no limit" with the largest multiple of a page; nothing near it is a limit that
// anybody set.
constexpr int64_t kNoLimitBytes = int64_t{1} << 62;

// How a version of cgroups calls things.
struct CgroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  // In memory.stat, the group's descendants included: clean pages of files, which the kernel takes
  // back before it kills.
  const char* inactive_file;
  const char* active_file;
};
constexpr CgroupFiles kV1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                             "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
constexpr CgroupFiles kV2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                             "active_file"};

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// `path` and all above it, down to the mount itself. In a container the path may be the host's,
// which is not there, and the container's own group is at the mount.
std::vector<std::string> WithAncestors(const std::string& mount, absl::string_view path) {
  std::vector<std::string> directories;
  while (!path.empty() && path != "/") {
    directories.push_back(absl::StrCat(mount, path));
    path = path.substr(0, path.rfind('/'));
  }
  directories.push_back(mount);
  return directories;
}

void TightenBy(const CgroupFiles& files, absl::string_view path, const FileReader& read_file,
               HostMemory& memory) {
  for (const std::string& directory : WithAncestors(files.mount, path)) {
    const auto limit_text = read_file(absl::StrCat(directory, "/", files.limit));
    const auto usage_text = read_file(absl::StrCat(directory, "/", files.usage));
    if (!limit_text.has_value() || !usage_text.has_value()) continue;
    const auto limit = ParseCgroupBytes(*limit_text);
    const auto usage = ParseCgroupBytes(*usage_text);
    if (!limit.has_value() || !usage.has_value()) continue;
    const std::string stat = read_file(absl::StrCat(directory, "/memory.stat")).value_or("");
    const int64_t reclaimable = ParseStatValue(stat, files.inactive_file).value_or(0) +
                                ParseStatValue(stat, files.active_file).value_or(0);
    const int64_t used = std::max<int64_t>(0, *usage - reclaimable);
    const int64_t free = std::max<int64_t>(0, *limit - used);
    if (!memory.cgroup_free_bytes.has_value() || free < *memory.cgroup_free_bytes) {
      memory.cgroup_free_bytes = free;
      memory.cgroup_limit_bytes = *limit;
      memory.cgroup = directory;
    }
  }
}

}  // namespace

std::optional<int64_t> ParseMemAvailable(absl::string_view meminfo) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kibibytes = 0;
    if (words.size() == 3 && words[0] == "MemAvailable:" && words[2] == "kB" &&
        absl::SimpleAtoi(words[1], &kibibytes) && kibibytes >= 0 &&
        kibibytes <= kNoLimitBytes / 1024) {
      return kibibytes * 1024;
    }
  }
  return std::nullopt;
}

CgroupPaths ParseCgroupPaths(absl::string_view proc_self_cgroup) {
  CgroupPaths paths;
  for (const absl::string_view line : absl::StrSplit(proc_self_cgroup, '\n')) {
    // HIERARCHY:CONTROLLERS:PATH, and the path may have colons.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || !absl::StartsWith(fields[2], "/")) continue;
    if (fields[0] == "0" && fields[1].empty()) paths.v2 = std::string(fields[2]);
    for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller == "memory") paths.v1_memory = std::string(fields[2]);
    }
  }
  return paths;
}

std::optional<int64_t> ParseStatValue(absl::string_view text, absl::string_view key) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t value = 0;
    if (words.size() == 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return std::nullopt;
}

std::optional<int64_t> ParseCgroupBytes(absl::string_view text) {
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &bytes)) return std::nullopt;
  if (bytes < 0 || bytes >= kNoLimitBytes) return std::nullopt;
  return bytes;
}

HostMemory ReadHostMemory() { return ReadHostMemory(ReadFile); }

HostMemory ReadHostMemory(const FileReader& read_file) {
  HostMemory memory;
  memory.available_bytes = ParseMemAvailable(read_file("/proc/meminfo").value_or(""));
  const CgroupPaths paths = ParseCgroupPaths(read_file("/proc/self/cgroup").value_or(""));
  if (paths.v1_memory.has_value()) TightenBy(kV1, *paths.v1_memory, read_file, memory);
  if (paths.v2.has_value()) TightenBy(kV2, *paths.v2, read_file, memory);
  return memory;
}

absl::Status CheckHostMemory(int64_t needed_bytes, const HostMemory& memory) {
  if (memory.cgroup_free_bytes.has_value() && needed_bytes > *memory.cgroup_free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the job needs ", needed_bytes, " bytes of memory on this host and ",
        *memory.cgroup_free_bytes, " are left below the limit of ", memory.cgroup_limit_bytes,
        " bytes of ", memory.cgroup, "; raise the limit or make the model smaller"));
  }
  if (memory.available_bytes.has_value() && needed_bytes > *memory.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job needs ", needed_bytes, " bytes of memory on this host and ",
                     *memory.available_bytes,
                     " are available (MemAvailable); free memory or make the model smaller"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
