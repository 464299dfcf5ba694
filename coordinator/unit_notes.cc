#include "coordinator/unit_notes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "coordinator/plan_notes.h"

namespace tessera {
namespace {

constexpr int kMaxNames = 4;

void MoveTo(FoldedNotes notes, v1::Plan* plan) {
  std::vector<std::string> made;
  notes.MoveTo(&made);
  for (std::string& note : made) plan->add_notes(std::move(note));
}

void NoteEmptyUnits(v1::Plan* plan) {
  FoldedNotes notes("units have no parameters left.");
  for (const v1::Unit& unit : plan->units()) {
    if (!unit.parameters().empty() || unit.fqn().empty()) continue;
    notes.Add(absl::StrCat("unit \"", unit.fqn(), "\" has no parameters left and moves nothing."));
  }
  MoveTo(std::move(notes), plan);
}

// "2 parameters (\"a\", \"b\")" of those with this requires_grad.
std::string Named(const v1::Unit& unit, bool requires_grad, absl::string_view what) {
  std::string names;
  int count = 0;
  for (const v1::UnitParameter& parameter : unit.parameters()) {
    if (parameter.requires_grad() != requires_grad) continue;
    if (count++ < kMaxNames)
      absl::StrAppend(&names, names.empty() ? "" : ", ", "\"", parameter.fqn(), "\"");
  }
  if (count > kMaxNames) absl::StrAppend(&names, " and ", count - kMaxNames, " more");
  return absl::StrCat(count, " ", what, count == 1 ? " parameter (" : " parameters (", names, ")");
}

// pytorch #91167, peft #1702: accepted, and said what it costs.
void NoteFrozenBesideTrainable(v1::Plan* plan) {
  FoldedNotes notes("units hold frozen parameters beside trainable ones.");
  for (const v1::Unit& unit : plan->units()) {
    const int64_t frozen = unit.numel() - unit.trainable_numel();
    if (frozen == 0 || unit.trainable_numel() == 0) continue;
    if (notes.full()) {
      notes.AddHidden();
      continue;
    }
    notes.Add(absl::StrCat(
        ShownUnit(unit.fqn()), " holds ", Named(unit, false, "frozen"), " of ", frozen,
        " elements beside ", Named(unit, true, "trainable"), " of ", unit.trainable_numel(),
        ": its gradients have room for all of them, ", frozen * DTypeBytes(unit.param_dtype()),
        " bytes more on a rank while it is unsharded and ",
        frozen * DTypeBytes(unit.gradient_dtype()), " bytes more over all shards."));
  }
  MoveTo(std::move(notes), plan);
}

void NoteUnusedSettings(const ModelIndex& index, const WrapChoice& choice, v1::Plan* plan) {
  FoldedNotes notes("modules have a wrap_config and are no units.");
  for (size_t i = 0; i < index.modules().size(); ++i) {
    if (!index.modules()[i].spec->has_wrap_config() || choice.is_unit[i]) continue;
    notes.Add(absl::StrCat(ShownModule(index.modules()[i].fqn),
                           " has a wrap_config and is no unit, so it changes nothing."));
  }
  MoveTo(std::move(notes), plan);
}

void NoteWhatIsInNoUnit(const ModelIndex& index, const WrapChoice& choice, const UnitHomes& homes,
                        v1::Plan* plan) {
  const auto parameters = [](int64_t count) {
    return absl::StrCat(count, count == 1 ? " parameter of " : " parameters of ");
  };
  if (choice.ignored.parameter_count > 0) {
    plan->add_notes(absl::StrCat(parameters(choice.ignored.parameter_count), choice.ignored.numel,
                                 " elements in no unit as asked (wrap.ignore): neither sharded nor "
                                 "reduced here; who trains them keeps them alike on all ranks."));
  }
  int64_t orphans = 0;
  for (size_t i = 0; i < homes.unit.size(); ++i) {
    if (homes.unit[i] == UnitHomes::kOrphan) orphans += index.parameters()[i].numel;
  }
  if (plan->orphans_size() == 0) return;
  plan->add_notes(absl::StrCat(parameters(plan->orphans_size()), orphans,
                               " elements in no unit, since wrap.root_unit is by_policy and the "
                               "policy leaves the root out; give always, or a policy that covers "
                               "them."));
}

void NoteNoAnnotation(const WrapChoice& choice, v1::Plan* plan) {
  if (choice.policies.size() != 1 || choice.policies[0].name() != "annotated") return;
  if (std::any_of(choice.is_unit.begin() + 1, choice.is_unit.end(), [](bool unit) { return unit; }))
    return;
  plan->add_notes(
      "No module below the root has wrap or a wrap_config, which wrap.policy annotated "
      "goes by.");
}

}  // namespace

void AddUnitNotes(const ModelIndex& index, const WrapChoice& choice, const UnitHomes& homes,
                  v1::Plan* plan) {
  NoteEmptyUnits(plan);
  NoteFrozenBesideTrainable(plan);
  NoteNoAnnotation(choice, plan);
  NoteUnusedSettings(index, choice, plan);
  NoteWhatIsInNoUnit(index, choice, homes, plan);
}

}  // namespace tessera
