#include "common/byte_count.h"

#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {
namespace {

struct Unit {
  const char* name;
  double bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}, {"EiB", 0x1p60},
    {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
};

}  // namespace

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  const absl::string_view suffix = absl::StripLeadingAsciiWhitespace(text.substr(digits));
  double number = 0;
  const bool is_number = absl::SimpleAtod(text.substr(0, digits), &number);
  for (const Unit& unit : kUnits) {
    if (!is_number || suffix != unit.name) continue;
    const double bytes = std::round(number * unit.bytes);
    if (bytes >= 0x1p63) break;
    return static_cast<int64_t>(bytes);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a number of bytes; write 16MiB, 80GiB or 1048576"));
}

std::string FormatByteCount(int64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == std::floor(value);
  return whole ? absl::StrFormat("%.0f %s", value, kNames[unit])
               : absl::StrFormat("%.1f %s", value, kNames[unit]);
}

}  // namespace tessera
