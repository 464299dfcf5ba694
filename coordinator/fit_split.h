// A plan as it would be with its largest unit in two. For fit.cc.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_FIT_SPLIT_H_
#define TESSERA_COORDINATOR_FIT_SPLIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/v1/plan.pb.h"

namespace tessera {

struct SplitPlan {
  v1::Plan plan;
  std::string fqn;              // of the unit that was split
  int64_t unsharded_bytes = 0;  // before
};

// The unit that is largest whole, cut between two parameters where the halves differ least; the
// first half becomes a unit beside it, with the same settings. Nothing: there is no unit with
// elements, or the largest has a single parameter.
std::optional<SplitPlan> SplitLargestUnit(const v1::Plan& plan, const v1::Layout& layout);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_FIT_SPLIT_H_
