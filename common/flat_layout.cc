#include "common/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {
namespace {

int64_t RoundUpTo(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Elements between two places whose byte offset is a multiple of `align_bytes`.
int64_t AlignNumel(int64_t align_bytes, int64_t element_bytes) {
  return align_bytes == 0 ? 1 : align_bytes / std::gcd(align_bytes, element_bytes);
}

absl::Status CheckOptions(const FlatLayoutOptions& options) {
  const auto check_align = [](int64_t value, absl::string_view field) {
    if (value >= 0 && value <= kMaxAlignBytes) return absl::OkStatus();
    return InvalidField(field, absl::StrCat("is ", value, "; give 0 to ", kMaxAlignBytes));
  };
  if (absl::Status s = check_align(options.param_align_bytes, "wrap.param_align_bytes"); !s.ok())
    return s;
  if (absl::Status s = check_align(options.shard_align_bytes, "wrap.shard_align_bytes"); !s.ok())
    return s;
  if (options.shard_count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard_count is ", options.shard_count, "; give at least 1"));
  }
  if (DTypeBytes(options.param_dtype) == 0)
    return absl::InvalidArgumentError("param_dtype is not set");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FlatLayout> MakeFlatLayout(absl::Span<const int64_t> numels,
                                          const FlatLayoutOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const int64_t element_bytes = DTypeBytes(options.param_dtype);
  const int64_t param_align = AlignNumel(options.param_align_bytes, element_bytes);
  const int64_t shard_align = AlignNumel(options.shard_align_bytes, element_bytes);
  FlatLayout layout;
  layout.offsets.reserve(numels.size());
  int64_t total = 0;
  for (const int64_t numel : numels) {
    if (numel < 0)
      return absl::InvalidArgumentError(absl::StrCat("a parameter has ", numel, " elements"));
    const int64_t offset = RoundUpTo(layout.end, param_align);
    layout.offsets.push_back(offset);
    // Of an empty parameter too, as FSDP: no offset lies behind the end.
    layout.end = offset + numel;
    total += numel;
  }
  if (total == 0) return layout;
  const int64_t share = (layout.end + options.shard_count - 1) / options.shard_count;
  layout.shard_numel = RoundUpTo(share, shard_align);
  layout.padded_numel = layout.shard_numel * options.shard_count;
  return layout;
}

std::vector<ShardRecord> ShardRecords(absl::Span<const int64_t> offsets,
                                      absl::Span<const int64_t> numels, int64_t begin,
                                      int64_t end) {
  std::vector<ShardRecord> records;
  for (size_t i = 0; i < offsets.size() && i < numels.size(); ++i) {
    const int64_t first = std::max(begin, offsets[i]);
    const int64_t last = std::min(end, offsets[i] + numels[i]);
    if (first >= last) continue;
    records.push_back({.parameter = static_cast<int>(i),
                       .begin = first - offsets[i],
                       .end = last - offsets[i],
                       .offset_in_shard = first - begin});
  }
  return records;
}

}  // namespace tessera
