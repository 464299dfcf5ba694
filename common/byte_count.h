// Bytes as people write them on a command line.
//
//   TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteCount("16MiB"));  // 16,777,216
//
// Thread-safety: pure functions.
#ifndef TESSERA_COMMON_BYTE_COUNT_H_
#define TESSERA_COMMON_BYTE_COUNT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A decimal number and a unit: B (or none), KiB, MiB, GiB, TiB, PiB, EiB (powers of 1,024), or kB,
// MB, GB, TB (powers of 1,000). A fraction is allowed, and rounded to a whole byte.
// INVALID_ARGUMENT: not such a text, negative, or more than 2^63 - 1.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// 67108864 as "64 MiB", 1536 as "1.5 KiB", 1000 as "1000 B": the largest unit that leaves at least
// 1, with at most one decimal.
std::string FormatByteCount(int64_t bytes);

}  // namespace tessera

#endif  // TESSERA_COMMON_BYTE_COUNT_H_
