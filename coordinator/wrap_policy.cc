#include "coordinator/wrap_policy.h"

#include <set>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// Enough to see a slip of the pen; models have hundreds of classes at most.
constexpr size_t kMaxClassesShown = 20;

std::string ClassesOf(const ModelIndex& index) {
  std::set<std::string> classes;
  for (const ModelIndex::Module& module : index.modules()) {
    if (!module.spec->class_name().empty()) classes.insert(module.spec->class_name());
    if (classes.size() == kMaxClassesShown) break;
  }
  return classes.empty() ? "none" : absl::StrJoin(classes, ", ");
}

absl::Status ChooseByClass(const ModelIndex& index, const v1::WrapSpec& wrap,
                           std::vector<bool>* units) {
  if (wrap.wrap_classes().empty()) {
    return InvalidField("wrap.wrap_classes", "is empty; name the classes that become units");
  }
  absl::flat_hash_map<std::string, bool> found;
  for (const std::string& name : wrap.wrap_classes()) {
    if (name.empty()) return InvalidField("wrap.wrap_classes", "has \"\" in it; drop it");
    found.emplace(name, false);
  }
  for (size_t i = 0; i < index.modules().size(); ++i) {
    const auto match = [&](const std::string& name) {
      const auto listed = found.find(name);
      if (listed == found.end()) return;
      listed->second = true;
      (*units)[i] = true;
    };
    match(index.modules()[i].spec->class_name());
    for (const std::string& name : index.modules()[i].spec->base_classes()) match(name);
  }
  std::vector<std::string> missing;
  for (const std::string& name : wrap.wrap_classes()) {
    if (!found[name]) missing.push_back(absl::StrCat("\"", name, "\""));
  }
  if (missing.empty()) return absl::OkStatus();
  return InvalidField("wrap.wrap_classes",
                      absl::StrCat("no module has the class ", absl::StrJoin(missing, " or "),
                                   "; the model's classes: ", ClassesOf(index)));
}

}  // namespace

absl::StatusOr<std::vector<bool>> ChooseUnits(const ModelIndex& index, const v1::WrapSpec& wrap) {
  if (wrap.has_root_unit() && wrap.root_unit() != "always") {
    return InvalidField("wrap.root_unit", absl::StrCat("\"", wrap.root_unit(),
                                                       "\" is not available yet; use always"));
  }
  std::vector<bool> units(index.modules().size(), false);
  units[0] = true;
  const std::string& policy = wrap.policy();
  if (policy == "class") {
    TESSERA_RETURN_IF_ERROR(ChooseByClass(index, wrap, &units));
  } else if (policy == "annotated") {
    for (size_t i = 1; i < units.size(); ++i) units[i] = index.modules()[i].spec->wrap();
  } else if (policy == "size" || policy == "always") {
    return InvalidField("wrap.policy",
                        absl::StrCat("\"", policy, "\" is not available yet; use class or none"));
  } else if (policy != "none") {
    return InvalidField("wrap.policy",
                        absl::StrCat("\"", policy, "\" is unknown; use class or none"));
  }
  return units;
}

}  // namespace tessera
