#include "coordinator/ignored.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/fqn_matcher.h"

namespace tessera {
namespace {

// Marks `first` and all below it. What is the same object as a module elsewhere takes that along.
void IgnoreModule(const ModelIndex& index, int first, std::vector<bool>* ignored) {
  std::vector<int> pending = {first};
  while (!pending.empty()) {
    const int top = pending.back();
    pending.pop_back();
    if ((*ignored)[top]) continue;
    for (int i = top; i < index.modules()[top].subtree_end; ++i) {
      (*ignored)[i] = true;
      if (index.modules()[i].same_as >= 0) pending.push_back(index.modules()[i].same_as);
    }
  }
}

absl::Status IgnoreNamed(const ModelIndex& index, const v1::WrapSpec& wrap, Ignored* ignored) {
  TESSERA_ASSIGN_OR_RETURN(
      FqnMatcher matcher,
      FqnMatcher::Create("wrap.ignore", {wrap.ignore().begin(), wrap.ignore().end()}));
  for (size_t i = 0; i < index.modules().size(); ++i) {
    if (matcher.Match(index.modules()[i].fqn).empty()) continue;
    IgnoreModule(index, static_cast<int>(i), &ignored->modules);
  }
  for (size_t i = 0; i < index.parameters().size(); ++i) {
    const ModelIndex::Parameter& parameter = index.parameters()[i];
    bool ignore = !matcher.Match(parameter.fqn).empty() || ignored->modules[parameter.module];
    for (const ModelIndex::Parameter::Use& use : parameter.uses) {
      if (!matcher.Match(use.fqn).empty() || ignored->modules[use.module]) ignore = true;
    }
    ignored->parameters[i] = ignore;
  }
  const int unused = matcher.FirstUnused();
  if (unused < 0) return absl::OkStatus();
  return InvalidField("wrap.ignore",
                      absl::StrCat("\"", wrap.ignore(unused),
                                   "\" names no module and no parameter of the model; give the FQN "
                                   "of one"));
}

}  // namespace

absl::StatusOr<Ignored> FindIgnored(const ModelIndex& index, const v1::WrapSpec& wrap) {
  Ignored ignored;
  ignored.modules.resize(index.modules().size(), false);
  ignored.parameters.resize(index.parameters().size(), false);
  if (wrap.ignore().empty()) return ignored;
  TESSERA_RETURN_IF_ERROR(IgnoreNamed(index, wrap, &ignored));
  // An alias of what is ignored is ignored too.
  for (size_t i = 0; i < index.modules().size(); ++i) {
    const int target = index.modules()[i].same_as;
    if (target >= 0 && ignored.modules[target]) ignored.modules[i] = true;
  }
  for (size_t i = 0; i < index.parameters().size(); ++i) {
    if (!ignored.parameters[i]) continue;
    ++ignored.parameter_count;
    ignored.numel += index.parameters()[i].numel;
  }
  if (ignored.parameter_count < static_cast<int64_t>(index.parameters().size())) return ignored;
  return InvalidField("wrap.ignore",
                      "leaves no parameter of the model; there is nothing to train, ignore less");
}

}  // namespace tessera
