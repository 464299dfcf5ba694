#include "worker/mapped_bytes.h"

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<int64_t> SumMappedBytes(std::istream& maps) {
  int64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    if (!absl::StrContains(line, " /memfd:tessera-")) continue;
    uint64_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2 || end < begin) {
      return absl::InternalError(absl::StrCat("a line of /proc/self/maps that is none: ", line));
    }
    bytes += static_cast<int64_t>(end - begin);
  }
  return bytes;
}

absl::StatusOr<int64_t> MeasureMappedBytes() {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return absl::InternalError("cannot read /proc/self/maps");
  return SumMappedBytes(maps);
}

}  // namespace tessera
