// Folds what a reader would call the same: the 126 equal layers of a model are one row,
// "layers.0-125 x126", and so are the experts in them, "layers.0-31.experts.0-7 x256".
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_FOLD_UNITS_H_
#define TESSERA_CLIENT_FOLD_UNITS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera {

struct UnitGroup {
  std::string name;        // as above; the FQN where there is one unit, "(root)" for ""
  std::vector<int> units;  // positions in `fqns`, ascending
};

// Units are in one group where their `kinds` are equal and their FQNs differ in numbers that count
// on by one, in the order of the units; they need not be neighbours. Every unit is in one group,
// and groups are in the order of their first units. fqns and kinds have the same length.
std::vector<UnitGroup> FoldUnits(absl::Span<const std::string> fqns,
                                 absl::Span<const std::string> kinds);

// The names of the groups of FQNs that are all of one kind.
std::vector<std::string> FoldFqns(absl::Span<const std::string> fqns);

// `text` as a whole number that is written as StrCat writes it (no sign, no leading zero), below
// 10^9; else -1.
int CountingNumber(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CLIENT_FOLD_UNITS_H_
