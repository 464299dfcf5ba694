// Which unit each parameter is in: that of the nearest enclosing module that is a unit, or, where
// its storage is used in several places, the lowest unit that covers all of them.
#ifndef TESSERA_COORDINATOR_UNIT_HOMES_H_
#define TESSERA_COORDINATOR_UNIT_HOMES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_spec.h"
#include "coordinator/wrap_policy.h"

namespace tessera {

struct UnitHomes {
  static constexpr int kOrphan = -1;
  static constexpr int kIgnored = -2;
  // For each of index.parameters() the module that is its unit, or one of the above.
  std::vector<int> unit;
  // For each of index.modules() the nearest unit, itself included; -1: none.
  std::vector<int> nearest;
  std::vector<std::string> notes;  // what moved, and why
};

// INVALID_ARGUMENT: `ties` is reject, and a tie would move a parameter out of the unit around it;
// Field(status) is the parameter, and the message names both FQNs (pytorch #83052).
absl::StatusOr<UnitHomes> FindUnitHomes(const ModelIndex& index, const WrapChoice& choice,
                                        const std::string& ties);

// What became of a parameter that its ties move: a sentence. "": nothing moved.
std::string WhyMoved(const ModelIndex& index, const UnitHomes& homes, int parameter);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_UNIT_HOMES_H_
