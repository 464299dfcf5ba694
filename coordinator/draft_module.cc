#include "coordinator/draft_module.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"
#include "google/protobuf/util/message_differencer.h"

namespace tessera {
namespace {

using google::protobuf::util::MessageDifferencer;

std::string Shown(absl::string_view fqn) {
  return fqn.empty() ? "the root" : absl::StrCat("module \"", fqn, "\"");
}

std::set<std::string> StubsOf(const v1::ModuleAnnouncement& announcement) {
  return {announcement.sealed().begin(), announcement.sealed().end()};
}

bool IsOf(const google::protobuf::RepeatedPtrField<std::string>& classes,
          const v1::Module& module) {
  return std::any_of(classes.begin(), classes.end(), [&](const std::string& name) {
    const auto& bases = module.base_classes();
    return !name.empty() && (module.class_name() == name ||
                             std::find(bases.begin(), bases.end(), name) != bases.end());
  });
}

// Nothing but its name.
bool IsBare(const v1::Module& module) {
  v1::Module named;
  named.set_name(module.name());
  return MessageDifferencer::Equals(named, module);
}

void RemoveStubs(const std::string& fqn, const std::set<std::string>& stubs, v1::Module* module) {
  auto* children = module->mutable_children();
  children->erase(std::remove_if(children->begin(), children->end(),
                                 [&](const v1::Module& child) {
                                   return stubs.count(JoinFqn(fqn, child.name())) > 0;
                                 }),
                  children->end());
  for (v1::Module& child : *children) RemoveStubs(JoinFqn(fqn, child.name()), stubs, &child);
}

absl::Status CheckDepth(const v1::Module& module, absl::string_view fqn, int depth) {
  if (depth > kMaxModuleDepth) {
    return InvalidField(fqn, absl::StrCat("is nested more than ", kMaxModuleDepth, " deep"));
  }
  for (const v1::Module& child : module.children()) {
    TESSERA_RETURN_IF_ERROR(CheckDepth(child, JoinFqn(fqn, child.name()), depth + 1));
  }
  return absl::OkStatus();
}

std::string ShownParameter(const v1::Parameter& parameter) {
  std::string shown =
      absl::StrCat(parameter.dtype(), " [", absl::StrJoin(parameter.shape(), ", "), "]");
  if (parameter.has_requires_grad() && !parameter.requires_grad())
    absl::StrAppend(&shown, " frozen");
  if (!parameter.tied_to().empty()) absl::StrAppend(&shown, " tied to ", parameter.tied_to());
  return shown;
}

std::string DifferenceOfParameters(const std::string& fqn, const v1::Module& there,
                                   const v1::Module& here) {
  const int common = std::min(there.parameters_size(), here.parameters_size());
  for (int i = 0; i < common; ++i) {
    const v1::Parameter& a = there.parameters(i);
    const v1::Parameter& b = here.parameters(i);
    if (MessageDifferencer::Equals(a, b)) continue;
    if (a.name() != b.name()) {
      return absl::StrCat("parameter ", i, " of ", Shown(fqn), " is \"", a.name(),
                          "\" there and \"", b.name(), "\" here");
    }
    const std::string shown_a = ShownParameter(a), shown_b = ShownParameter(b);
    return absl::StrCat(
        "parameter \"", JoinFqn(fqn, a.name()), "\" is ", shown_a, " there and ",
        shown_a == shown_b ? "has other first values here" : absl::StrCat(shown_b, " here"));
  }
  if (there.parameters_size() == here.parameters_size()) return "";
  return absl::StrCat(Shown(fqn), " has ", there.parameters_size(), " parameters there and ",
                      here.parameters_size(), " here");
}

std::string DifferenceOfModules(const std::string& fqn, const v1::Module& there,
                                const v1::Module& here) {
  if (there.class_name() != here.class_name()) {
    return absl::StrCat(Shown(fqn), " is a \"", there.class_name(), "\" there and a \"",
                        here.class_name(), "\" here");
  }
  std::string difference = DifferenceOfParameters(fqn, there, here);
  if (!difference.empty()) return difference;
  for (int i = 0; i < std::min(there.children_size(), here.children_size()); ++i) {
    const std::string &a = there.children(i).name(), &b = here.children(i).name();
    if (a != b) {
      return absl::StrCat("child ", i, " of ", Shown(fqn), " is \"", a, "\" there and \"", b,
                          "\" here");
    }
    difference = DifferenceOfModules(JoinFqn(fqn, a), there.children(i), here.children(i));
    if (!difference.empty()) return difference;
  }
  if (there.children_size() != here.children_size()) {
    return absl::StrCat(Shown(fqn), " has ", there.children_size(), " children there and ",
                        here.children_size(), " here");
  }
  v1::Module a = there, b = here;
  a.clear_name(), a.clear_children(), b.clear_name(), b.clear_children();
  return MessageDifferencer::Equals(a, b)
             ? ""
             : absl::StrCat(Shown(fqn), " has other base classes, buffers or annotations here");
}

}  // namespace

void VisitModules(v1::Module* module, const std::string& fqn,
                  const std::function<bool(const std::string& fqn, v1::Module* module)>& visit) {
  if (!visit(fqn, module)) return;
  for (v1::Module& child : *module->mutable_children()) {
    VisitModules(&child, JoinFqn(fqn, child.name()), visit);
  }
}

absl::Status CheckAnnounced(
    const v1::ModuleAnnouncement& announcement,
    const std::function<std::string(const std::string& parameter)>& sealed_unit) {
  TESSERA_RETURN_IF_ERROR(CheckDepth(announcement.module(), announcement.fqn(), 1));
  std::set<std::string> stubs = StubsOf(announcement);
  std::set<std::string> parameters;
  std::vector<std::pair<std::string, std::string>> ties;  // FQN, of what
  absl::Status status;
  v1::Module module = announcement.module();
  VisitModules(&module, announcement.fqn(), [&](const std::string& fqn, v1::Module* visited) {
    if (fqn != announcement.fqn() && stubs.erase(fqn) > 0) {
      if (!IsBare(*visited)) status = InvalidField(fqn, "is sealed; give its name alone");
      return false;
    }
    if (!visited->same_as().empty()) {
      status = InvalidField(fqn,
                            "is the same object as another module, which a model that is built "
                            "cannot have; tie its parameters");
    }
    for (const v1::Parameter& parameter : visited->parameters()) {
      parameters.insert(JoinFqn(fqn, parameter.name()));
      if (!parameter.tied_to().empty()) {
        ties.emplace_back(JoinFqn(fqn, parameter.name()), parameter.tied_to());
      }
    }
    return true;
  });
  TESSERA_RETURN_IF_ERROR(status);
  if (!stubs.empty()) {
    return InvalidField(*stubs.begin(),
                        absl::StrCat("is sealed and not in ", Shown(announcement.fqn()),
                                     ", which was said to hold it; add it under this name"));
  }
  for (const auto& [fqn, holder] : ties) {
    if (parameters.count(holder) > 0) continue;
    const std::string unit = sealed_unit(holder);
    return InvalidField(
        fqn,
        unit == "(none)"
            ? absl::StrCat("is tied to \"", holder, "\", which is not in ",
                           Shown(announcement.fqn()), "; wrap a module that holds both")
            : absl::StrCat("is tied to \"", holder, "\" of ",
                           unit.empty() ? "the root unit" : absl::StrCat("unit \"", unit, "\""),
                           ", which is sealed already; do not wrap that alone, but a module "
                           "that holds both"));
  }
  return absl::OkStatus();
}

v1::Module WithoutStubs(const v1::ModuleAnnouncement& announcement) {
  v1::Module module = announcement.module();
  RemoveStubs(announcement.fqn(), StubsOf(announcement), &module);
  return module;
}

v1::Module WithSealed(const v1::ModuleAnnouncement& announcement,
                      const std::function<const v1::Module&(const std::string& fqn)>& sealed) {
  const std::set<std::string> stubs = StubsOf(announcement);
  v1::Module module = announcement.module();
  VisitModules(&module, announcement.fqn(), [&](const std::string& fqn, v1::Module* visited) {
    if (fqn == announcement.fqn() || stubs.count(fqn) == 0) return true;
    *visited = sealed(fqn);
    return false;
  });
  const std::string& fqn = announcement.fqn();
  module.set_name(fqn.substr(fqn.rfind('.') + 1));
  return module;
}

void AnnotateUnits(const v1::ModuleAnnouncement& announcement, const std::set<std::string>& units,
                   const google::protobuf::RepeatedPtrField<std::string>& full_precision,
                   v1::Module* module) {
  v1::WrapConfig defaults = announcement.defaults(), overrides = announcement.overrides();
  v1::WrapConfig full_defaults = defaults, full_overrides = overrides;
  for (v1::WrapConfig* config : {&full_defaults, &full_overrides}) {
    config->clear_param_dtype();
    config->clear_reduce_dtype();
  }
  const std::set<std::string> stubs = StubsOf(announcement);
  VisitModules(module, announcement.fqn(), [&](const std::string& fqn, v1::Module* visited) {
    if (fqn != announcement.fqn() && stubs.count(fqn) > 0) return false;
    const bool full = announcement.has_policy() && IsOf(full_precision, *visited);
    v1::WrapConfig config = full ? full_defaults : defaults;
    MergeWrapConfig(visited->wrap_config(), &config);
    MergeWrapConfig(full ? full_overrides : overrides, &config);
    visited->clear_wrap();
    visited->clear_wrap_config();
    if (units.count(fqn) == 0) return true;
    visited->set_wrap(true);
    if (config.ByteSizeLong() > 0) *visited->mutable_wrap_config() = std::move(config);
    return true;
  });
}

std::string RelativeFqn(absl::string_view fqn, absl::string_view from) {
  if (from.empty()) return std::string(fqn);
  if (absl::ConsumePrefix(&fqn, from)) absl::ConsumePrefix(&fqn, ".");
  return std::string(fqn);
}

void MakeTiesRelative(const std::string& from, v1::Module* module) {
  VisitModules(module, from, [&](const std::string&, v1::Module* visited) {
    for (v1::Parameter& parameter : *visited->mutable_parameters()) {
      if (!parameter.tied_to().empty())
        parameter.set_tied_to(RelativeFqn(parameter.tied_to(), from));
    }
    return true;
  });
}

bool HasParameters(const v1::Module& module) {
  return !module.parameters().empty() ||
         std::any_of(module.children().begin(), module.children().end(), HasParameters);
}

void SetDType(const std::string& dtype, v1::Module* module) {
  VisitModules(module, "", [&](const std::string&, v1::Module* visited) {
    for (v1::Parameter& parameter : *visited->mutable_parameters()) parameter.set_dtype(dtype);
    return true;
  });
}

std::string Difference(const v1::ModuleAnnouncement& there, const v1::ModuleAnnouncement& here) {
  if (MessageDifferencer::Equals(there, here)) return "";
  if (there.dtype_changes() != here.dtype_changes()) {
    return absl::StrCat("the model's dtype had been changed ", there.dtype_changes(),
                        " times there and ", here.dtype_changes(), " times here");
  }
  for (const std::string& fqn : StubsOf(there)) {
    if (StubsOf(here).count(fqn) == 0) return absl::StrCat("\"", fqn, "\" is wrapped there only");
  }
  for (const std::string& fqn : StubsOf(here)) {
    if (StubsOf(there).count(fqn) == 0) return absl::StrCat("\"", fqn, "\" is wrapped here only");
  }
  const std::string modules = DifferenceOfModules(there.fqn(), there.module(), here.module());
  return modules.empty() ? "it is wrapped with another policy or other settings" : modules;
}

}  // namespace tessera
