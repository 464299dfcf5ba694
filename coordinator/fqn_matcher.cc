#include "coordinator/fqn_matcher.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"

namespace tessera {

absl::StatusOr<FqnMatcher> FqnMatcher::Create(absl::string_view field,
                                              const std::vector<std::string>& entries) {
  FqnMatcher matcher;
  matcher.used_.resize(entries.size(), false);
  for (size_t i = 0; i < entries.size(); ++i) {
    absl::StatusOr<FqnPattern> pattern = FqnPattern::Parse(entries[i]);
    if (!pattern.ok()) return InvalidField(field, pattern.status().message());
    if (pattern->has_wildcard()) {
      matcher.patterns_.emplace_back(static_cast<int>(i), *std::move(pattern));
    } else {
      matcher.plain_[entries[i]].push_back(static_cast<int>(i));
    }
  }
  return matcher;
}

absl::InlinedVector<int, 2> FqnMatcher::Match(absl::string_view fqn) {
  absl::InlinedVector<int, 2> found;
  if (const auto plain = plain_.find(fqn); plain != plain_.end()) {
    found.assign(plain->second.begin(), plain->second.end());
  }
  for (const auto& [index, pattern] : patterns_) {
    if (pattern.Matches(fqn)) found.push_back(index);
  }
  std::sort(found.begin(), found.end());
  for (const int index : found) used_[index] = true;
  return found;
}

int FqnMatcher::FirstUnused() const {
  const auto unused = std::find(used_.begin(), used_.end(), false);
  return unused == used_.end() ? -1 : static_cast<int>(unused - used_.begin());
}

}  // namespace tessera
