// How much memory this host may still use, so that a job that does not fit is refused before it
// takes any: the limit of a cgroup kills without a word.
//
//   TESSERA_RETURN_IF_ERROR(CheckHostMemory(bytes, ReadHostMemory()));
//
// The parsers are pure. Thread-safety: all of it may be called from any thread.
#ifndef TESSERA_WORKER_HOST_MEMORY_H_
#define TESSERA_WORKER_HOST_MEMORY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

struct HostMemory {
  // MemAvailable of /proc/meminfo, in bytes. Absent: not known.
  std::optional<int64_t> available_bytes;
  // What is left below the tightest limit of the process's cgroup and its ancestors, counting what
  // the kernel can take back as free. Absent: no limit.
  std::optional<int64_t> cgroup_free_bytes;
  // That limit, and the directory that has it.
  int64_t cgroup_limit_bytes = 0;
  std::string cgroup;
};

// The text of a file; nothing where there is no such file.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

// Of this process, from /proc and /sys/fs/cgroup (version 1 and 2). Whatever cannot be read is
// taken as without a limit.
HostMemory ReadHostMemory();
// The same from other files.
HostMemory ReadHostMemory(const FileReader& read_file);

// RESOURCE_EXHAUSTED: `needed_bytes` are more than there are; the message has both figures and what
// to do.
absl::Status CheckHostMemory(int64_t needed_bytes, const HostMemory& memory);

// MemAvailable in the text of /proc/meminfo, in bytes.
std::optional<int64_t> ParseMemAvailable(absl::string_view meminfo);

// Where /proc/self/cgroup puts the process: its path in the hierarchy of version 2, and in version
// 1's with the memory controller; absent where it is in none.
struct CgroupPaths {
  std::optional<std::string> v1_memory;
  std::optional<std::string> v2;
};
CgroupPaths ParseCgroupPaths(absl::string_view proc_self_cgroup);

// The number after `key` in a file of lines "KEY NUMBER" (memory.stat).
std::optional<int64_t> ParseStatValue(absl::string_view text, absl::string_view key);

// A limit or a usage in a file of its own, in bytes. Absent: "max", version 1's way of saying so,
// or no number.
std::optional<int64_t> ParseCgroupBytes(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_MEMORY_H_
