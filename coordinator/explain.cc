#include "coordinator/explain.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/plan_notes.h"
#include "coordinator/planner.h"
#include "coordinator/unit_homes.h"
#include "coordinator/unit_settings.h"
#include "coordinator/wrap_policy.h"

namespace tessera {
namespace {

constexpr size_t kMaxNames = 4;

// `names` as a list that stays readable.
std::string Listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNames);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

class Explainer {
 public:
  Explainer(const ModelIndex& index, const v1::JobSpec& job, const WrapChoice& choice,
            const UnitHomes& homes, const v1::Plan& plan)
      : index_(index), job_(job), choice_(choice), homes_(homes), plan_(plan) {}

  absl::StatusOr<v1::ExplainModuleResponse> Explain(int module);

 private:
  const v1::Module& Spec(int module) const { return *index_.modules()[module].spec; }
  const std::string& Fqn(int module) const { return index_.modules()[module].fqn; }
  // A reason: a sentence without capital and full stop. The name of a field keeps its case.
  void Say(std::string reason);
  void SayGates(int module);
  void SayRemainder(int module);
  void SayWrapTest(int module);
  void SayWhateverThePolicySays(int module);
  void SayWhere(int module);
  void SayTies(int module);
  absl::Status SaySettings(int module);
  bool AnySize() const;

  const ModelIndex& index_;
  const v1::JobSpec& job_;
  const WrapChoice& choice_;
  const UnitHomes& homes_;
  const v1::Plan& plan_;
  v1::ExplainModuleResponse response_;
};

void Explainer::Say(std::string reason) {
  if (!absl::StartsWith(reason, "wrap.")) reason[0] = absl::ascii_toupper(reason[0]);
  response_.add_reasons(absl::StrCat(reason, "."));
}

bool Explainer::AnySize() const {
  return std::any_of(choice_.policies.begin(), choice_.policies.end(),
                     [](const Policy& policy) { return policy.name() == "size"; });
}

// The gate of the first module around it that stops every policy, or its own.
void Explainer::SayGates(int module) {
  std::vector<int> path;
  for (int at = module; at >= 0; at = index_.modules()[at].parent) path.push_back(at);
  std::reverse(path.begin(), path.end());
  for (const int at : path) {
    bool through = false;
    std::vector<std::string> why;
    for (const Policy& policy : choice_.policies) {
      const Policy::Answer answer = policy.Descend(Spec(at), choice_.numel[at]);
      through |= answer.yes;
      why.push_back(policy.WhyDescend(answer, choice_.numel[at]));
    }
    if (at != module && through) continue;
    if (at == module && path.size() > 1) {
      Say("every module around it lets the policy through");
    }
    for (const std::string& reason : why) {
      Say(at == module ? reason
                       : absl::StrCat(ShownModule(Fqn(at)), ", which encloses it: ", reason));
    }
    return;
  }
}

void Explainer::SayRemainder(int module) {
  if (!AnySize()) return;
  std::vector<std::string> units;
  for (int i = module + 1; i < index_.modules()[module].subtree_end;) {
    const int object = index_.modules()[i].same_as >= 0 ? index_.modules()[i].same_as : i;
    if (choice_.is_unit[object] && !choice_.second_name[i]) {
      units.push_back(absl::StrCat(ShownModule(Fqn(i)), ": ", choice_.numel[object]));
      i = index_.modules()[i].subtree_end;
    } else {
      ++i;
    }
  }
  const int64_t remainder = choice_.numel[module] - choice_.reported[module];
  if (units.empty()) {
    Say(absl::StrCat("no unit below it reports anything, so all ", remainder,
                     " elements are left for it"));
    return;
  }
  Say(absl::StrCat(
      "the units below it report ", choice_.reported[module], " elements (", Listed(units),
      "), so ", remainder, " of ", choice_.numel[module], " are left for it",
      remainder < 0 ? ": fewer than none, since each reports what is tied between them" : ""));
}

void Explainer::SayWrapTest(int module) {
  const int64_t remainder = choice_.numel[module] - choice_.reported[module];
  for (const Policy& policy : choice_.policies) {
    Say(policy.WhyWrap(policy.Wrap(Spec(module), remainder, module == 0), remainder));
  }
}

void Explainer::SayWhateverThePolicySays(int module) {
  if (module == 0 && job_.wrap().root_unit() != "by_policy") {
    Say("it is the root, which is a unit unless wrap.root_unit is by_policy");
  }
  if (choice_.pattern[module] >= 0) {
    Say(absl::StrCat("\"", job_.wrap().wrap_patterns(choice_.pattern[module]),
                     "\" in wrap.wrap_patterns matches it, so it is a unit"));
  }
  if (choice_.full_precision[module]) {
    Say(absl::StrCat("mixed precision is on, and its class ", Spec(module).class_name(),
                     " or a base class is in mixed_precision.ignored_classes, so it is a unit of "
                     "its own in full precision"));
  }
}

void Explainer::SayWhere(int module) {
  const int unit = homes_.nearest[module];
  response_.set_is_unit(unit == module);
  if (unit < 0) {
    Say("no module around it is a unit either, so its parameters are orphans");
    return;
  }
  response_.set_unit_fqn(Fqn(unit));
  if (unit != module) {
    Say(absl::StrCat("its parameters are in ", ShownUnit(Fqn(unit)), ", the nearest around it"));
  }
}

// Parameters that are elsewhere, or here, because they are tied.
void Explainer::SayTies(int module) {
  FoldedNotes notes("parameters moved because they are tied.");
  for (size_t i = 0; i < index_.parameters().size(); ++i) {
    const int home = index_.parameters()[i].module;
    const bool concerns = choice_.is_unit[module]
                              ? homes_.nearest[home] == module || homes_.unit[i] == module
                              : home == module;
    if (!concerns) continue;
    std::string why = WhyMoved(index_, homes_, static_cast<int>(i));
    if (!why.empty()) notes.Add(std::move(why));
  }
  std::vector<std::string> made;
  notes.MoveTo(&made);
  for (std::string& note : made) response_.add_reasons(std::move(note));
}

absl::Status Explainer::SaySettings(int module) {
  TESSERA_ASSIGN_OR_RETURN(UnitSettings settings, UnitSettings::Create(index_, job_, choice_));
  const std::string& fqn = Fqn(module);
  for (const UnitSettings::Source& source : settings.SourcesOf(module, fqn)) {
    const std::string sets = source.config.ShortDebugString();
    Say(absl::StrCat(source.name, choice_.is_unit[module] ? " sets " : " would set ",
                     sets.empty() ? "nothing" : sets));
  }
  if (!choice_.is_unit[module]) return absl::OkStatus();
  for (const v1::Unit& unit : plan_.units()) {
    if (unit.fqn() != fqn &&
        unit.fqn() != absl::StrCat(fqn, ":", DTypeName(unit.original_dtype()))) {
      continue;
    }
    Say(absl::StrCat(ShownUnit(unit.fqn()), " has ", unit.numel(), " elements, ",
                     DTypeName(unit.original_dtype()), " in the model, gathered in ",
                     DTypeName(unit.param_dtype()), " and reduced in ",
                     DTypeName(unit.reduce_dtype())));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainModuleResponse> Explainer::Explain(int module) {
  response_.set_fqn(Fqn(module));
  response_.set_class_name(Spec(module).class_name());
  if (const int target = index_.modules()[module].same_as; target >= 0) {
    Say(absl::StrCat("it is the same object as \"", Fqn(target),
                     "\", and what is decided there holds here"));
    response_.set_class_name(Spec(target).class_name());
    module = target;
  }
  if (choice_.ignored.modules[module]) {
    Say("wrap.ignore names it, a module around it or one that is the same object, so it is in no "
        "unit");
    return std::move(response_);
  }
  SayGates(module);
  if (choice_.asked[module]) {
    const bool through =
        std::any_of(choice_.policies.begin(), choice_.policies.end(), [&](const Policy& policy) {
          return policy.Descend(Spec(module), choice_.numel[module]).yes;
        });
    if (through) {
      SayRemainder(module);
      SayWrapTest(module);
    }
  }
  SayWhateverThePolicySays(module);
  SayWhere(module);
  SayTies(module);
  TESSERA_RETURN_IF_ERROR(SaySettings(module));
  return std::move(response_);
}

absl::StatusOr<int> FindModule(const ModelIndex& index, absl::string_view fqn) {
  for (size_t i = 0; i < index.modules().size(); ++i) {
    if (index.modules()[i].fqn == fqn) return static_cast<int>(i);
  }
  for (const ModelIndex::Parameter& parameter : index.parameters()) {
    if (parameter.fqn != fqn) continue;
    return InvalidField("fqn", absl::StrCat("\"", fqn, "\" is a parameter; give its module \"",
                                            index.modules()[parameter.module].fqn, "\""));
  }
  std::vector<std::string> children;
  for (const v1::Module& child : index.modules()[0].spec->children()) {
    children.push_back(absl::StrCat("\"", child.name(), "\""));
  }
  return InvalidField("fqn", absl::StrCat("\"", fqn, "\" is no module of the model; its root has ",
                                          children.empty() ? "none below it" : Listed(children)));
}

}  // namespace

absl::StatusOr<v1::ExplainModuleResponse> ExplainModule(const v1::JobSpec& resolved,
                                                        absl::string_view fqn) {
  TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
  TESSERA_ASSIGN_OR_RETURN(const v1::Plan plan, MakePlan(model, resolved));
  TESSERA_ASSIGN_OR_RETURN(const ModelIndex index, ModelIndex::Create(model));
  TESSERA_ASSIGN_OR_RETURN(const int module, FindModule(index, fqn));
  TESSERA_ASSIGN_OR_RETURN(const WrapChoice choice,
                           ChooseUnits(index, resolved.wrap(), resolved.mixed_precision()));
  TESSERA_ASSIGN_OR_RETURN(const UnitHomes homes,
                           FindUnitHomes(index, choice, resolved.wrap().ties()));
  return Explainer(index, resolved, choice, homes, plan).Explain(module);
}

}  // namespace tessera
