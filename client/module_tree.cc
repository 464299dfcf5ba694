#include "client/module_tree.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/model_spec.h"
#include "common/status_macros.h"

namespace tessera {

class ModuleTreeBuilder {
 public:
  ModuleTreeBuilder(const ModelIndex& index, const v1::Plan& plan,
                    absl::Span<const UnitGroup> groups, ModuleTreeOptions options)
      : index_(index), options_(options), modules_(index.modules().size()) {
    for (size_t group = 0; group < groups.size(); ++group) {
      for (const int unit : groups[group].units) {
        unit_groups_.emplace(plan.units(unit).fqn(), static_cast<int>(group));
        for (const v1::UnitParameter& parameter : plan.units(unit).parameters()) {
          parameter_groups_.emplace(parameter.fqn(), static_cast<int>(group));
        }
      }
    }
    for (const std::string& fqn : plan.ignored()) parameter_groups_.emplace(fqn, kIgnored);
  }

  std::vector<ModuleTree::Node> Build() {
    AddUpParameters();
    AddUpModules();
    nodes_.push_back(MakeNode({0, 0, 1}));
    // The largest first, so that these are the ones within the bound.
    const auto smaller = [&](const Open& a, const Open& b) {
      return std::pair(nodes_[a.node].bytes, -a.node) < std::pair(nodes_[b.node].bytes, -b.node);
    };
    std::priority_queue<Open, std::vector<Open>, decltype(smaller)> open(smaller);
    open.push({0, 0});
    while (!open.empty()) {
      const Open next = open.top();
      open.pop();
      for (const Open& child : Expand(next)) open.push(child);
    }
    return std::move(nodes_);
  }

 private:
  // Of one module. A signature is the same for modules that look the same below and with their
  // names left out.
  struct Module {
    std::vector<int> children;
    int64_t numel = 0;
    int64_t bytes = 0;
    int64_t own_bytes = 0;
    int group = kNoParameters;
    bool is_unit = false;
    std::string own_signature;
    int signature = 0;
  };
  // Modules that one node stands for: `count` siblings, the first of them `module`, the
  // `first_child`-th of its parent.
  struct Siblings {
    int module = 0;
    size_t first_child = 0;
    int64_t count = 1;
  };
  struct Open {
    int node = 0;
    int module = 0;
  };

  void AddUpParameters() {
    for (const ModelIndex::Parameter& parameter : index_.parameters()) {
      Module& module = modules_[parameter.module];
      const auto found = parameter_groups_.find(parameter.fqn);
      const int group = found == parameter_groups_.end() ? kOrphan : found->second;
      if (module.group == kNoParameters) module.group = group;
      module.numel += parameter.numel;
      module.own_bytes += parameter.numel * DTypeBytes(parameter.dtype);
      absl::StrAppend(&module.own_signature, parameter.numel, ",",
                      static_cast<int>(parameter.dtype), ",", group, ";");
    }
  }

  // From the last module to the first: children come after their parents.
  void AddUpModules() {
    absl::flat_hash_map<std::string, int> signatures;
    for (int i = static_cast<int>(modules_.size()) - 1; i >= 0; --i) {
      const ModelIndex::Module& indexed = index_.modules()[i];
      Module& module = modules_[i];
      module.bytes += module.own_bytes;
      std::reverse(module.children.begin(), module.children.end());
      const auto unit = unit_groups_.find(indexed.fqn);
      module.is_unit = unit != unit_groups_.end() && indexed.same_as == -1;
      if (module.is_unit) module.group = unit->second;
      std::string signature = absl::StrCat(ClassOf(indexed), "\n", module.is_unit, module.group,
                                           "\n", module.own_signature);
      for (const int child : module.children) {
        absl::StrAppend(&signature, "\n", index_.modules()[child].spec->name(), "\n",
                        modules_[child].signature);
      }
      module.signature =
          signatures.emplace(std::move(signature), static_cast<int>(signatures.size()))
              .first->second;
      if (indexed.parent < 0) continue;
      Module& parent = modules_[indexed.parent];
      parent.children.push_back(i);
      parent.numel += module.numel;
      parent.bytes += module.bytes;
    }
  }

  std::string ClassOf(const ModelIndex::Module& module) const {
    if (module.same_as == -1) return module.spec->class_name();
    return absl::StrCat("same as ", index_.modules()[module.same_as].fqn);
  }

  std::vector<Siblings> FoldChildren(const Module& parent) const {
    std::vector<Siblings> folded;
    int expected = -1;  // the number that goes on with the last of `folded`
    for (size_t i = 0; i < parent.children.size(); ++i) {
      const int child = parent.children[i];
      const int number = CountingNumber(index_.modules()[child].spec->name());
      const bool joins = number >= 0 && number == expected &&
                         modules_[child].signature == modules_[folded.back().module].signature;
      if (joins) {
        ++folded.back().count;
      } else {
        folded.push_back({child, i, 1});
      }
      expected = number >= 0 ? number + 1 : -1;
    }
    return folded;
  }

  ModuleTree::Node MakeNode(const Siblings& siblings) const {
    const ModelIndex::Module& indexed = index_.modules()[siblings.module];
    const Module& module = modules_[siblings.module];
    ModuleTree::Node node;
    node.name = indexed.spec->name();
    if (siblings.count > 1) {
      const int first = CountingNumber(node.name);
      absl::StrAppend(&node.name, "-", first + siblings.count - 1);
    }
    node.class_name = ClassOf(indexed);
    node.siblings = siblings.count;
    node.modules = siblings.count;
    node.is_unit = module.is_unit;
    node.group = module.group;
    node.numel = module.numel;
    node.bytes = module.bytes;
    node.own_bytes = module.own_bytes;
    return node;
  }

  // Adds nodes for the children of an open node, and returns those.
  std::vector<Open> Expand(const Open& parent) {
    std::vector<Siblings> folded = FoldChildren(modules_[parent.module]);
    // By size; then those that are shown in their own order again.
    const auto bytes = [&](const Siblings& one) { return one.count * modules_[one.module].bytes; };
    std::stable_sort(folded.begin(), folded.end(),
                     [&](const auto& a, const auto& b) { return bytes(a) > bytes(b); });
    const int64_t room = std::max<int64_t>(0, options_.max_nodes - int64_t(nodes_.size()));
    const size_t shown =
        std::min({folded.size(), size_t(options_.max_children), static_cast<size_t>(room)});
    const int64_t copies = nodes_[parent.node].modules;
    for (size_t i = shown; i < folded.size(); ++i) {
      const ModelIndex::Module& indexed = index_.modules()[folded[i].module];
      const int64_t modules = indexed.subtree_end - folded[i].module;
      nodes_[parent.node].hidden_modules += copies * folded[i].count * modules;
      nodes_[parent.node].hidden_bytes += copies * bytes(folded[i]);
    }
    folded.resize(shown);
    std::sort(folded.begin(), folded.end(),
              [](const auto& a, const auto& b) { return a.first_child < b.first_child; });
    std::vector<Open> opened;
    for (const Siblings& siblings : folded) {
      ModuleTree::Node node = MakeNode(siblings);
      node.modules *= copies;
      for (int64_t* figure : {&node.numel, &node.bytes, &node.own_bytes}) *figure *= node.modules;
      opened.push_back({static_cast<int>(nodes_.size()), siblings.module});
      nodes_[parent.node].children.push_back(opened.back().node);
      nodes_.push_back(std::move(node));
    }
    return opened;
  }

  const ModelIndex& index_;
  const ModuleTreeOptions options_;
  absl::flat_hash_map<std::string, int> unit_groups_;
  absl::flat_hash_map<std::string, int> parameter_groups_;
  std::vector<Module> modules_;  // as index_.modules()
  std::vector<ModuleTree::Node> nodes_;
};

absl::StatusOr<ModuleTree> ModuleTree::Create(const v1::ModelSpec& model, const v1::Plan& plan,
                                              absl::Span<const UnitGroup> groups,
                                              ModuleTreeOptions options) {
  TESSERA_ASSIGN_OR_RETURN(const ModelIndex index, ModelIndex::Create(model));
  ModuleTree tree;
  tree.nodes_ = ModuleTreeBuilder(index, plan, groups, options).Build();
  return tree;
}

}  // namespace tessera
