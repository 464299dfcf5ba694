#include "common/fqn_pattern.h"

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

// Whether `text` matches `pattern`, in which star(p) says that pattern[p] stands for any run and
// same(p, t) that pattern[p] and text[t] agree. Going back to the last star alone is enough: what
// an earlier one could take, the last one can.
template <typename Star, typename Same>
bool Glob(size_t pattern_size, size_t text_size, const Star& star, const Same& same) {
  size_t p = 0;
  size_t t = 0;
  size_t after_star = 0;  // in the pattern; 0: there was none
  size_t taken_to = 0;    // in the text: where what the last star takes ends
  while (t < text_size) {
    if (p < pattern_size && star(p)) {
      after_star = ++p;
      taken_to = t;
    } else if (p < pattern_size && same(p, t)) {
      ++p;
      ++t;
    } else if (after_star > 0) {
      p = after_star;
      t = ++taken_to;
    } else {
      return false;
    }
  }
  while (p < pattern_size && star(p)) ++p;
  return p == pattern_size;
}

bool SegmentMatches(absl::string_view pattern, absl::string_view segment) {
  return Glob(
      pattern.size(), segment.size(), [&](size_t p) { return pattern[p] == '*'; },
      [&](size_t p, size_t t) { return pattern[p] == segment[t]; });
}

}  // namespace

absl::StatusOr<FqnPattern> FqnPattern::Parse(absl::string_view text) {
  FqnPattern pattern;
  pattern.text_ = std::string(text);
  pattern.has_wildcard_ = absl::StrContains(text, '*');
  pattern.literal_prefix_ = std::string(text.substr(0, text.find('*')));
  if (text.empty()) return pattern;
  pattern.segments_ = absl::StrSplit(text, '.');
  for (const std::string& segment : pattern.segments_) {
    if (segment.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" has an empty segment; give names joined by single dots"));
    }
  }
  return pattern;
}

bool FqnPattern::Matches(absl::string_view fqn) const {
  if (!has_wildcard_) return fqn == text_;
  // "layers.**" matches "layers" too, which lacks the dot.
  absl::string_view prefix = literal_prefix_;
  if (!prefix.empty() && prefix.back() == '.') prefix.remove_suffix(1);
  if (!absl::StartsWith(fqn, prefix)) return false;
  absl::InlinedVector<absl::string_view, 16> segments;
  if (!fqn.empty()) {
    for (const absl::string_view segment : absl::StrSplit(fqn, '.')) segments.push_back(segment);
  }
  return Glob(
      segments_.size(), segments.size(), [&](size_t p) { return segments_[p] == "**"; },
      [&](size_t p, size_t t) { return SegmentMatches(segments_[p], segments[t]); });
}

}  // namespace tessera
