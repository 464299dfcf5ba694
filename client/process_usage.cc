#include "client/process_usage.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

absl::Status Unexpected(absl::string_view file) {
  return absl::InternalError(absl::StrCat("/proc/PID/", file, " is not as Linux writes it"));
}

absl::StatusOr<std::string> ReadProc(pid_t pid, absl::string_view name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/", name));
  std::stringstream text;
  text << file.rdbuf();
  if (!file.good() || text.str().empty()) {
    return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  }
  return text.str();
}

// The number of the line "NAME:  N ..." of /proc/PID/status.
absl::StatusOr<int64_t> Line(absl::string_view status, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, ":")) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t number = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &number)) return number;
    break;
  }
  return Unexpected("status");
}

}  // namespace

absl::StatusOr<ProcessUsage> ParseProcessUsage(absl::string_view stat, absl::string_view status,
                                               int64_t ticks_per_second) {
  // The second field is the program's name in brackets, which may hold anything.
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return Unexpected("stat");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kUserTicks = 14 - 3;  // fields count from 1, and these begin with the third
  int64_t user = 0;
  int64_t kernel = 0;
  if (fields.size() <= kUserTicks + 1 || !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kUserTicks + 1], &kernel)) {
    return Unexpected("stat");
  }
  ProcessUsage usage;
  usage.cpu_seconds = static_cast<double>(user + kernel) / static_cast<double>(ticks_per_second);
  TESSERA_ASSIGN_OR_RETURN(const int64_t kibibytes, Line(status, "VmHWM"));
  usage.peak_rss_bytes = kibibytes * 1024;
  TESSERA_ASSIGN_OR_RETURN(const int64_t threads, Line(status, "Threads"));
  usage.threads = static_cast<int>(threads);
  return usage;
}

absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid) {
  TESSERA_ASSIGN_OR_RETURN(const std::string stat, ReadProc(pid, "stat"));
  TESSERA_ASSIGN_OR_RETURN(const std::string status, ReadProc(pid, "status"));
  return ParseProcessUsage(stat, status, sysconf(_SC_CLK_TCK));
}

}  // namespace tessera
