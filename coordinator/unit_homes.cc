#include "coordinator/unit_homes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/plan_notes.h"

namespace tessera {
namespace {

using Use = ModelIndex::Parameter::Use;

// Whether everything that happens at `use` happens while `unit` is whole.
bool Covers(const ModelIndex& index, int unit, const Use& use) {
  if (index.Encloses(unit, use.module)) return true;
  const int target = index.modules()[use.module].same_as;
  // An alias runs the module object itself, and with it the units inside that object.
  return target >= 0 && (index.Encloses(target, unit) || index.Encloses(use.object, unit));
}

struct Lifted {
  int unit = UnitHomes::kOrphan;
  const Use* cause = nullptr;  // the first use that asked for it; null: nothing moved
};

// The lowest unit that covers all uses of `parameter`.
Lifted LiftOverUses(const ModelIndex& index, const std::vector<int>& nearest,
                    const ModelIndex::Parameter& parameter) {
  Lifted lifted{.unit = nearest[parameter.module]};
  // Going up may uncover an alias that was covered, so from the first use again until none asks for
  // more.
  for (size_t i = 0; lifted.unit >= 0 && i < parameter.uses.size();) {
    if (Covers(index, lifted.unit, parameter.uses[i])) {
      ++i;
      continue;
    }
    if (lifted.cause == nullptr) lifted.cause = &parameter.uses[i];
    const int parent = index.modules()[lifted.unit].parent;
    lifted.unit = parent < 0 ? UnitHomes::kOrphan : nearest[parent];
    i = 0;
  }
  return lifted;
}

std::string Moved(const ModelIndex& index, const ModelIndex::Parameter& parameter,
                  const Lifted& lifted, int home) {
  return absl::StrCat("\"", parameter.fqn, "\" is in ",
                      lifted.unit < 0 ? "no unit" : ShownUnit(index.modules()[lifted.unit].fqn),
                      " instead of ", ShownUnit(index.modules()[home].fqn), ", because \"",
                      lifted.cause->fqn, "\" uses the same storage.");
}

absl::Status RefuseTie(const ModelIndex& index, const ModelIndex::Parameter& parameter,
                       const Lifted& lifted, int home) {
  return InvalidField(
      parameter.fqn,
      absl::StrCat("is in ", ShownUnit(index.modules()[home].fqn), ", and \"", lifted.cause->fqn,
                   "\", which is tied to it, is outside; make one unit of both, or give wrap.ties "
                   "lift"));
}

}  // namespace

absl::StatusOr<UnitHomes> FindUnitHomes(const ModelIndex& index, const WrapChoice& choice,
                                        const std::string& ties) {
  if (!ties.empty() && ties != "lift" && ties != "reject") {
    return InvalidField("wrap.ties", absl::StrCat("\"", ties, "\" is unknown; use lift or reject"));
  }
  UnitHomes homes;
  homes.nearest = NearestUnits(index, choice.is_unit);
  homes.unit.reserve(index.parameters().size());
  FoldedNotes notes("parameters moved because they are tied.");
  for (size_t i = 0; i < index.parameters().size(); ++i) {
    const ModelIndex::Parameter& parameter = index.parameters()[i];
    if (choice.ignored.parameters[i]) {
      homes.unit.push_back(UnitHomes::kIgnored);
      continue;
    }
    const Lifted lifted = LiftOverUses(index, homes.nearest, parameter);
    homes.unit.push_back(lifted.unit);
    if (lifted.cause == nullptr) continue;
    const int home = homes.nearest[parameter.module];
    if (ties == "reject") return RefuseTie(index, parameter, lifted, home);
    if (notes.full()) {
      notes.AddHidden();
    } else {
      notes.Add(Moved(index, parameter, lifted, home));
    }
  }
  notes.MoveTo(&homes.notes);
  return homes;
}

std::string WhyMoved(const ModelIndex& index, const UnitHomes& homes, int parameter) {
  const ModelIndex::Parameter& moved = index.parameters()[parameter];
  const int home = homes.nearest[moved.module];
  if (homes.unit[parameter] == UnitHomes::kIgnored || home == homes.unit[parameter]) return "";
  return Moved(index, moved, LiftOverUses(index, homes.nearest, moved), home);
}

}  // namespace tessera
