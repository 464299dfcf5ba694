// What a process has used, as /proc says.
//
//   TESSERA_ASSIGN_OR_RETURN(const ProcessUsage usage, ReadProcessUsage(child->pid()));
//
// Thread-safety: pure but for what it reads.
#ifndef TESSERA_CLIENT_PROCESS_USAGE_H_
#define TESSERA_CLIENT_PROCESS_USAGE_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

struct ProcessUsage {
  double cpu_seconds = 0;      // of all its threads, in user and kernel mode
  int64_t peak_rss_bytes = 0;  // since it started
  int threads = 0;
};

// NOT_FOUND: there is no such process. INTERNAL: /proc says something else than Linux does.
absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid);

// From the texts of /proc/PID/stat and /proc/PID/status. INTERNAL: as above.
absl::StatusOr<ProcessUsage> ParseProcessUsage(absl::string_view stat, absl::string_view status,
                                               int64_t ticks_per_second);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PROCESS_USAGE_H_
