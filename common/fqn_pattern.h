// Names of modules and parameters with wildcards, as wrap.wrap_patterns, wrap.ignore and
// wrap.overrides take them.
//
//   TESSERA_ASSIGN_OR_RETURN(const FqnPattern pattern, FqnPattern::Parse("layers.*.attn"));
//   pattern.Matches("layers.0.attn")  // true
//
// A pattern is an FQN in which * stands for one segment or a part of one ("layers.*",
// "layers.*.w*") and a segment ** for any number of segments, none included ("layers.**" matches
// "layers" and all below it). "" matches the root alone. Without a * a pattern is just an FQN.
//
// Thread-safety: a value.
#ifndef TESSERA_COMMON_FQN_PATTERN_H_
#define TESSERA_COMMON_FQN_PATTERN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

class FqnPattern {
 public:
  // INVALID_ARGUMENT: a segment is empty; the message does not name the field.
  static absl::StatusOr<FqnPattern> Parse(absl::string_view text);

  bool Matches(absl::string_view fqn) const;

  // Whether it can match more than one name.
  bool has_wildcard() const { return has_wildcard_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string literal_prefix_;  // before the first *: most names are told apart by it
  std::vector<std::string> segments_;
  bool has_wildcard_ = false;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_FQN_PATTERN_H_
