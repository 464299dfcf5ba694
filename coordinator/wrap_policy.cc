#include "coordinator/wrap_policy.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/mixed_precision.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"
#include "coordinator/fqn_matcher.h"
#include "coordinator/plan_notes.h"
#include "coordinator/subtree_numels.h"

namespace tessera {
namespace {

// Enough to see a slip of the pen; models have hundreds of classes at most.
constexpr size_t kMaxClassesShown = 20;

// More than any model holds, and far enough from the end of int64 to add a model to it.
constexpr int64_t kMaxReported = int64_t{1} << 60;

std::string ClassesOf(const ModelIndex& index) {
  std::set<std::string> classes;
  for (const ModelIndex::Module& module : index.modules()) {
    if (!module.spec->class_name().empty()) classes.insert(module.spec->class_name());
    if (classes.size() == kMaxClassesShown) break;
  }
  return classes.empty() ? "none" : absl::StrJoin(classes, ", ");
}

class Chooser {
 public:
  Chooser(const ModelIndex& index, const v1::WrapSpec& wrap, const v1::MixedPrecisionSpec& mixed)
      : index_(index),
        wrap_(wrap),
        mixed_(mixed),
        count_(index.modules().size()),
        by_policy_(wrap.root_unit() == "by_policy") {}

  absl::StatusOr<WrapChoice> Choose();

 private:
  const v1::Module& Spec(size_t module) const { return *index_.modules()[module].spec; }
  absl::Status CheckClassesExist(const Policy& policy) const;
  absl::Status MatchPatterns();
  absl::StatusOr<bool> IsMixed(int module) const;
  absl::Status FindFullPrecision();
  void FindSecondNames();
  void AskDescend();
  void Close(int module);
  bool AnyWraps(int module, int64_t remainder) const;
  void NoteDoubleCounts();

  const ModelIndex& index_;
  const v1::WrapSpec& wrap_;
  const v1::MixedPrecisionSpec& mixed_;
  const size_t count_;
  const bool by_policy_;
  WrapChoice choice_;
  std::vector<bool> descends_;
  std::vector<int64_t> reports_;
};

absl::Status Chooser::CheckClassesExist(const Policy& policy) const {
  absl::flat_hash_set<absl::string_view> missing(policy.wrap_classes().names().begin(),
                                                 policy.wrap_classes().names().end());
  for (size_t i = 0; i < count_ && !missing.empty(); ++i) {
    missing.erase(Spec(i).class_name());
    for (const std::string& base : Spec(i).base_classes()) missing.erase(base);
  }
  if (missing.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const absl::string_view name : missing) names.push_back(absl::StrCat("\"", name, "\""));
  std::sort(names.begin(), names.end());
  return InvalidField(absl::StrCat(policy.prefix(), "wrap_classes"),
                      absl::StrCat("no module has the class ", absl::StrJoin(names, " or "),
                                   "; the model's classes: ", ClassesOf(index_)));
}

absl::Status Chooser::MatchPatterns() {
  if (wrap_.wrap_patterns().empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(FqnMatcher matcher,
                           FqnMatcher::Create("wrap.wrap_patterns", {wrap_.wrap_patterns().begin(),
                                                                     wrap_.wrap_patterns().end()}));
  for (size_t i = 0; i < count_; ++i) {
    const ModelIndex::Module& module = index_.modules()[i];
    const auto matched = matcher.Match(module.fqn);
    // An alias counts as a match, so that a list of every name is no error.
    if (!matched.empty() && module.same_as < 0) choice_.pattern[i] = matched.front();
  }
  const int unused = matcher.FirstUnused();
  if (unused < 0) return absl::OkStatus();
  return InvalidField("wrap.wrap_patterns",
                      absl::StrCat("\"", wrap_.wrap_patterns(unused),
                                   "\" matches no module of the model; correct it or drop it"));
}

// Whether the job's dtypes differ from those of what the module holds.
absl::StatusOr<bool> Chooser::IsMixed(int module) const {
  const auto& parameters = index_.parameters();
  auto first = std::lower_bound(
      parameters.begin(), parameters.end(), module,
      [](const ModelIndex::Parameter& parameter, int m) { return parameter.module < m; });
  if (first == parameters.end() || first->module >= index_.modules()[module].subtree_end) {
    first = parameters.begin();
  }
  TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes, ResolveDTypes(first->dtype, mixed_));
  return dtypes.mixed_param() || dtypes.mixed_reduce();
}

absl::Status Chooser::FindFullPrecision() {
  const bool none = std::all_of(choice_.policies.begin(), choice_.policies.end(),
                                [](const Policy& policy) { return policy.name() == "none"; });
  if (none || (mixed_.param_dtype().empty() && mixed_.reduce_dtype().empty())) {
    return absl::OkStatus();
  }
  const ClassSet ignored = ClassSet::OrDefault(mixed_.ignored_classes(), kDefaultIgnoredClasses);
  std::set<std::string> classes;
  int64_t modules = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (choice_.ignored.modules[i] || ignored.Match(Spec(i)) == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(const bool mixed, IsMixed(static_cast<int>(i)));
    if (!mixed) continue;
    choice_.full_precision[i] = true;
    ++modules;
    classes.insert(Spec(i).class_name());
  }
  if (modules > 0) {
    choice_.notes.push_back(
        absl::StrCat(modules, modules == 1 ? " module of the class" : " modules of the class",
                     classes.size() == 1 ? " " : "es ", absl::StrJoin(classes, ", "),
                     modules == 1 ? " is a unit of its own" : " are units of their own",
                     " and out of mixed precision (mixed_precision.ignored_classes)."));
  }
  return absl::OkStatus();
}

void Chooser::FindSecondNames() {
  absl::flat_hash_set<std::pair<int, int>> seen;  // parent, object
  for (size_t i = 0; i < count_; ++i) {
    const int target = index_.modules()[i].same_as;
    if (target < 0) continue;
    const int parent = index_.modules()[i].parent;
    choice_.second_name[i] =
        index_.modules()[target].parent == parent || !seen.emplace(parent, target).second;
  }
}

void Chooser::AskDescend() {
  for (size_t i = 0; i < count_; ++i) {
    const ModelIndex::Module& module = index_.modules()[i];
    if (choice_.ignored.modules[i] || module.same_as >= 0) continue;
    if (module.parent >= 0 && !descends_[module.parent]) continue;
    choice_.asked[i] = true;
    for (const Policy& policy : choice_.policies) {
      if (descends_[i]) break;
      descends_[i] = policy.Descend(Spec(i), choice_.numel[i]).yes;
    }
  }
}

bool Chooser::AnyWraps(int module, int64_t remainder) const {
  return std::any_of(choice_.policies.begin(), choice_.policies.end(), [&](const Policy& policy) {
    return policy.Wrap(Spec(module), remainder, module == 0).yes;
  });
}

// All below `module` is decided.
void Chooser::Close(int module) {
  const ModelIndex::Module& at = index_.modules()[module];
  if (at.same_as >= 0) {
    reports_[module] = choice_.second_name[module] ? 0 : reports_[at.same_as];
  } else if (!choice_.ignored.modules[module]) {
    const bool wrap =
        (module == 0 && !by_policy_) || choice_.pattern[module] >= 0 ||
        choice_.full_precision[module] ||
        (descends_[module] && AnyWraps(module, choice_.numel[module] - choice_.reported[module]));
    choice_.is_unit[module] = wrap;
    reports_[module] = wrap ? choice_.numel[module] : choice_.reported[module];
  }
  if (at.parent < 0) return;
  int64_t& reported = choice_.reported[at.parent];
  // What is tied a million times is reported a million times.
  reported = std::min(reported + reports_[module], kMaxReported);
}

// Where a module would be a unit if each tensor were reported once, or its remainder is negative.
void Chooser::NoteDoubleCounts() {
  const bool shared = std::any_of(index_.parameters().begin(), index_.parameters().end(),
                                  [](const auto& parameter) { return !parameter.uses.empty(); });
  if (!shared) return;
  const std::vector<int> nearest = NearestUnits(index_, choice_.is_unit);
  SubtreeSum sum(index_);  // of what is in units, at those units
  for (size_t i = 0; i < index_.parameters().size(); ++i) {
    if (choice_.ignored.parameters[i]) continue;
    const ModelIndex::Parameter& parameter = index_.parameters()[i];
    const int home = nearest[parameter.module];
    absl::InlinedVector<int, 4> units;
    if (home >= 0) units.push_back(home);
    for (const ModelIndex::Parameter::Use& use : parameter.uses) {
      // An alias brings along the units inside the object that it stands for.
      const bool brought = index_.modules()[use.module].same_as >= 0 && home >= 0 &&
                           index_.Encloses(use.object, home);
      const int unit = brought ? use.module : nearest[use.module];
      if (unit >= 0) units.push_back(unit);
    }
    sum.AddShared(std::move(units), parameter.numel);
  }
  const std::vector<int64_t> in_units = std::move(sum).Sums();
  FoldedNotes notes("modules are no units for the same reason.");
  for (size_t i = 0; i < count_; ++i) {
    if (!descends_[i] || choice_.is_unit[i]) continue;
    const int module = static_cast<int>(i);
    const int64_t remainder = choice_.numel[i] - choice_.reported[i];
    const int64_t exact = choice_.numel[i] - in_units[i];
    if (remainder >= 0 && AnyWraps(module, remainder) == AnyWraps(module, exact)) continue;
    notes.Add(absl::StrCat(ShownModule(index_.modules()[i].fqn), " is no unit: it holds ",
                           choice_.numel[i], " elements and the units below it report ",
                           choice_.reported[i], ", since each reports what is tied between them; ",
                           exact, " are in none of them."));
  }
  notes.MoveTo(&choice_.notes);
}

absl::StatusOr<WrapChoice> Chooser::Choose() {
  TESSERA_ASSIGN_OR_RETURN(choice_.policies, Policy::AllOf(wrap_));
  for (const Policy& policy : choice_.policies) TESSERA_RETURN_IF_ERROR(CheckClassesExist(policy));
  TESSERA_ASSIGN_OR_RETURN(choice_.ignored, FindIgnored(index_, wrap_));
  choice_.numel = SubtreeNumels(index_, choice_.ignored.parameters);
  choice_.pattern.resize(count_, -1);
  choice_.reported.resize(count_, 0);
  reports_.resize(count_, 0);
  for (std::vector<bool>* flags : {&choice_.is_unit, &choice_.asked, &choice_.full_precision,
                                   &descends_, &choice_.second_name}) {
    flags->resize(count_, false);
  }
  TESSERA_RETURN_IF_ERROR(MatchPatterns());
  TESSERA_RETURN_IF_ERROR(FindFullPrecision());
  FindSecondNames();
  AskDescend();
  std::vector<int> open;
  for (int i = 0; i <= static_cast<int>(count_); ++i) {
    while (!open.empty() &&
           (i == static_cast<int>(count_) || index_.modules()[open.back()].subtree_end <= i)) {
      Close(open.back());
      open.pop_back();
    }
    open.push_back(i);
  }
  NoteDoubleCounts();
  return std::move(choice_);
}

}  // namespace

absl::StatusOr<WrapChoice> ChooseUnits(const ModelIndex& index, const v1::WrapSpec& wrap,
                                       const v1::MixedPrecisionSpec& mixed_precision) {
  if (wrap.has_root_unit() && wrap.root_unit() != "always" && wrap.root_unit() != "by_policy") {
    return InvalidField("wrap.root_unit", absl::StrCat("\"", wrap.root_unit(),
                                                       "\" is unknown; use always or by_policy"));
  }
  return Chooser(index, wrap, mixed_precision).Choose();
}

std::vector<int> NearestUnits(const ModelIndex& index, const std::vector<bool>& is_unit) {
  std::vector<int> nearest(index.modules().size(), -1);
  // Pre-order: a parent comes before its children.
  for (size_t i = 0; i < nearest.size(); ++i) {
    const int parent = index.modules()[i].parent;
    nearest[i] = is_unit[i] ? static_cast<int>(i) : parent < 0 ? -1 : nearest[parent];
  }
  return nearest;
}

}  // namespace tessera
