// Which entries of a list of FQNs and patterns (common/fqn_pattern.h) name a module or a parameter.
// A plain FQN costs one look-up, so that lists may be long.
#ifndef TESSERA_COORDINATOR_FQN_MATCHER_H_
#define TESSERA_COORDINATOR_FQN_MATCHER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fqn_pattern.h"

namespace tessera {

class FqnMatcher {
 public:
  // INVALID_ARGUMENT: an entry is no pattern; Field(status) is `field`.
  static absl::StatusOr<FqnMatcher> Create(absl::string_view field,
                                           const std::vector<std::string>& entries);

  // Indices of the entries that match, in order. They count as used from now on.
  absl::InlinedVector<int, 2> Match(absl::string_view fqn);

  bool empty() const { return used_.empty(); }
  // The first entry that nothing matched; -1: none.
  int FirstUnused() const;

 private:
  std::vector<bool> used_;
  absl::flat_hash_map<std::string, absl::InlinedVector<int, 1>> plain_;
  std::vector<std::pair<int, FqnPattern>> patterns_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FQN_MATCHER_H_
