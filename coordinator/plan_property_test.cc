// Random models under every policy, with ties, shared modules, ignored parts, several dtypes and
// buffers: the planner against a second one that follows FairScale's recursion word by word, with
// sets of names and no care for time. The same seeds at each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/model_spec.h"
#include "coordinator/explain.h"
#include "coordinator/plan_test_util.h"

namespace tessera {
namespace {

constexpr int kTrees = 600;

// A module of the tree with what the second planner needs to know of it.
struct Node {
  std::string fqn;
  const v1::Module* spec = nullptr;
  Node* parent = nullptr;
  std::vector<Node*> children;
  Node* target = nullptr;  // of an alias
};

struct Use {
  Node* at = nullptr;      // the module with the tie, or the alias
  Node* object = nullptr;  // the module that runs there
};

struct Storage {
  std::string fqn;
  Node* home = nullptr;
  int64_t numel = 0;
  std::string dtype;
  bool requires_grad = true;
  std::vector<Use> uses;
};

class TreeMaker {
 public:
  explicit TreeMaker(unsigned seed) : random_(seed) {}

  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  v1::ModelSpec Make() {
    mixed_ = Below(3) == 0;
    v1::Module root;
    Fill(&root, "", 0);
    if (holders_.empty()) AddParameter(&root, "", "last");
    return ModelOfRoot(root);
  }

  v1::WrapSpec OnePolicy() {
    switch (Below(6)) {
      case 0:
        return Named("always");
      case 1:
        return Named("none");
      case 2:
        return Named("annotated");
      case 3:
        return Classes({class_names_[Below(static_cast<int>(class_names_.size()))]});
      default:
        break;
    }
    v1::WrapSpec wrap = Size(Below(400));
    if (Below(3) == 0) wrap.add_exclude_classes("A");
    if (Below(3) == 0) wrap.add_force_leaf_classes(Below(2) == 0 ? "B" : "");
    return wrap;
  }

  v1::WrapSpec Wrap() {
    v1::WrapSpec wrap = OnePolicy();
    if (Below(4) == 0) {
      v1::WrapSpec any;
      for (int i = 1 + Below(3); i > 0; --i) *any.add_any_of() = OnePolicy();
      wrap = any;
    }
    if (Below(2) == 0) wrap.set_root_unit("by_policy");
    if (wrap.policy() == "size" && wrap.root_unit() == "by_policy" && Below(2) == 0)
      wrap.set_skip_root_check(true);
    if (Below(3) == 0 && fqns_.size() > 1) wrap.add_ignore(AnyFqn());
    if (Below(4) == 0) wrap.add_ignore(holders_[Below(static_cast<int>(holders_.size()))].first);
    if (Below(4) == 0 && fqns_.size() > 1) wrap.add_wrap_patterns(AnyFqn());
    wrap.set_mixed_dtypes(mixed_ ? "split" : "refuse");
    return wrap;
  }

 private:
  const std::string& AnyFqn() { return fqns_[1 + Below(static_cast<int>(fqns_.size()) - 1)]; }

  void AddParameter(v1::Module* module, const std::string& fqn, const std::string& name) {
    const int numel = 1 + Below(150);
    v1::Parameter* parameter = AddWeight(module, name, {numel});
    if (mixed_ && Below(3) == 0) parameter->set_dtype("bfloat16");
    if (Below(5) == 0) parameter->set_requires_grad(false);
    if (!holders_.empty() && Below(5) == 0) {
      const auto& [holder, spec] = holders_[Below(static_cast<int>(holders_.size()))];
      *parameter = spec;
      parameter->set_name(name);
      parameter->set_tied_to(holder);
      return;
    }
    holders_.emplace_back(JoinFqn(fqn, name), *parameter);
  }

  void Fill(v1::Module* module, const std::string& fqn, int depth) {
    constexpr const char* kClasses[] = {"A",          "B", "C", "ModuleList", "MultiheadAttention",
                                        "BatchNorm1d"};
    module->set_class_name(kClasses[Below(6)]);
    if (Below(6) == 0) module->add_base_classes(kClasses[Below(5)]);
    if (Below(5) == 0) module->set_wrap(Below(3) > 0);
    class_names_.push_back(module->class_name());
    fqns_.push_back(fqn);
    for (int i = Below(3); i > 0; --i) AddParameter(module, fqn, absl::StrCat("p", i));
    if (Below(4) == 0) AddBuffer(module, "buffer", Below(2) == 0 ? "float32" : "int64");
    const size_t own = fqns_.size() - 1;
    for (int i = depth == 4 ? 0 : Below(depth == 0 ? 6 : 4); i > 0; --i) {
      v1::Module* child = module->add_children();
      child->set_name(absl::StrCat("m", i));
      const std::string child_fqn = JoinFqn(fqn, child->name());
      if (Below(7) == 0) {
        // Of what does not enclose it: neither this module nor one around it.
        std::vector<std::string> targets;
        for (size_t k = 0; k < fqns_.size(); ++k) {
          const bool encloses =
              fqns_[k].empty() || k == own || absl::StartsWith(fqn, fqns_[k] + ".");
          if (!encloses && aliases_.count(fqns_[k]) == 0) targets.push_back(fqns_[k]);
        }
        if (!targets.empty()) {
          child->set_same_as(targets[Below(static_cast<int>(targets.size()))]);
          aliases_.insert(child_fqn);
          fqns_.push_back(child_fqn);
          continue;
        }
      }
      Fill(child, child_fqn, depth + 1);
    }
  }

  std::mt19937 random_;
  bool mixed_ = false;
  std::vector<std::string> fqns_, class_names_;
  std::set<std::string> aliases_;
  std::vector<std::pair<std::string, v1::Parameter>> holders_;
};

// The second planner.
class Reference {
 public:
  Reference(const v1::ModelSpec& model, const v1::WrapSpec& wrap, bool mixed)
      : wrap_(wrap), mixed_(mixed) {
    Add(model.root(), "", nullptr);
    for (auto& [fqn, node] : nodes_) {
      if (!node.spec->same_as().empty()) node.target = &nodes_.at(node.spec->same_as());
    }
    for (Node* node : order_) AddOwn(node);
    for (const auto& [at, parameter] : ties_)
      storages_.at(parameter->tied_to()).uses.push_back({at, at});
    for (Node* node : order_) {
      if (node->target != nullptr) AddAliasUses(node, node->target);
    }
    FindIgnored();
    Visit(order_[0], /*asked=*/true);
  }

  bool IsUnit(const std::string& fqn) const { return units_.count(fqn) > 0; }
  const std::set<std::string>& units() const { return units_; }
  const std::map<std::string, Storage>& storages() const { return storages_; }
  bool Ignored(const std::string& storage) const { return ignored_storages_.count(storage) > 0; }

  // The unit of a storage: "-" for none. moved: its ties took it out of the nearest.
  std::string HomeOf(const Storage& storage, bool* moved) const {
    const Node* nearest = storage.home;
    while (nearest != nullptr && !IsUnit(nearest->fqn)) nearest = nearest->parent;
    for (const Node* unit = nearest; unit != nullptr; unit = unit->parent) {
      if (!IsUnit(unit->fqn)) continue;
      bool covers = true;
      for (const Use& use : storage.uses) {
        covers = covers && (Inside(use.at, unit) ||
                            (use.at->target != nullptr &&
                             (Inside(unit, use.at->target) || Inside(unit, use.object))));
      }
      if (!covers) continue;
      *moved = unit != nearest;
      return unit->fqn;
    }
    *moved = nearest != nullptr;
    return "-";
  }

 private:
  static bool Inside(const Node* inner, const Node* outer) {
    for (; inner != nullptr; inner = inner->parent) {
      if (inner == outer) return true;
    }
    return false;
  }

  Node* Add(const v1::Module& spec, const std::string& fqn, Node* parent) {
    Node* node = &nodes_[fqn];
    *node = {fqn, &spec, parent, {}, nullptr};
    order_.push_back(node);
    for (const v1::Module& child : spec.children())
      node->children.push_back(Add(child, JoinFqn(fqn, child.name()), node));
    return node;
  }

  void AddOwn(Node* node) {
    for (const v1::Parameter& parameter : node->spec->parameters()) {
      const std::string fqn = JoinFqn(node->fqn, parameter.name());
      if (!parameter.tied_to().empty()) {
        ties_.emplace_back(node, &parameter);
        names_[fqn] = parameter.tied_to();
        continue;
      }
      names_[fqn] = fqn;
      const bool grad = !parameter.has_requires_grad() || parameter.requires_grad();
      storages_[fqn] = {fqn, node, parameter.shape(0), parameter.dtype(), grad, {}};
    }
  }

  void AddAliasUses(Node* alias, Node* object) {
    std::function<void(Node*, Node*)> walk = [&](Node* node, Node* runs) {
      if (node->target != nullptr) return walk(node->target, node->target);
      for (const v1::Parameter& parameter : node->spec->parameters()) {
        storages_.at(names_.at(JoinFqn(node->fqn, parameter.name()))).uses.push_back({alias, runs});
      }
      for (Node* child : node->children) walk(child, runs);
    };
    walk(object, object);
  }

  void IgnoreAll(Node* node) {
    if (!ignored_.insert(node).second) return;
    if (node->target != nullptr) IgnoreAll(node->target);
    for (Node* child : node->children) IgnoreAll(child);
  }

  void FindIgnored() {
    for (const std::string& fqn : wrap_.ignore()) {
      if (nodes_.count(fqn) > 0) IgnoreAll(&nodes_.at(fqn));
      if (names_.count(fqn) > 0) ignored_storages_.insert(names_.at(fqn));
    }
    for (Node* node : order_) {
      if (node->target != nullptr && ignored_.count(node->target) > 0) ignored_.insert(node);
    }
    for (const auto& [fqn, storage] : storages_) {
      bool ignored = ignored_.count(storage.home) > 0;
      for (const Use& use : storage.uses) ignored = ignored || ignored_.count(use.at) > 0;
      if (ignored) ignored_storages_.insert(fqn);
    }
  }

  void Collect(const Node* node, std::set<std::string>* used) const {
    if (node->target != nullptr) return Collect(node->target, used);
    for (const v1::Parameter& parameter : node->spec->parameters())
      used->insert(names_.at(JoinFqn(node->fqn, parameter.name())));
    for (const Node* child : node->children) Collect(child, used);
  }

  int64_t Numel(const Node* node) const {
    std::set<std::string> used;
    Collect(node, &used);
    int64_t numel = 0;
    for (const std::string& fqn : used)
      numel += ignored_storages_.count(fqn) > 0 ? 0 : storages_.at(fqn).numel;
    return numel;
  }

  static bool In(const v1::Module& module, std::set<std::string> names) {
    names.erase("");
    bool in = names.count(module.class_name()) > 0;
    for (const std::string& base : module.base_classes()) in = in || names.count(base) > 0;
    return in;
  }
  template <typename List>
  static std::set<std::string> Or(const List& list, std::set<std::string> otherwise) {
    return list.empty() ? otherwise : std::set<std::string>(list.begin(), list.end());
  }

  static bool Asks(const v1::WrapSpec& policy, const Node& node, bool recurse, int64_t numel) {
    const v1::Module& module = *node.spec;
    if (policy.policy() == "always") return true;
    if (policy.policy() == "none") return false;
    if (policy.policy() == "size" && recurse)
      return numel >= policy.min_params() &&
             !In(module, Or(policy.force_leaf_classes(), {"MultiheadAttention"}));
    if (recurse) return true;
    if (policy.policy() == "class") return In(module, Or(policy.wrap_classes(), {}));
    if (policy.policy() == "annotated")
      return module.has_wrap() ? module.wrap() : module.has_wrap_config();
    return !In(module, Or(policy.exclude_classes(), {"ModuleList", "ModuleDict"})) &&
           (numel >= policy.min_params() || (policy.skip_root_check() && node.parent == nullptr));
  }

  bool Any(const Node& node, bool recurse, int64_t numel) const {
    if (wrap_.any_of().empty()) return Asks(wrap_, node, recurse, numel);
    return std::any_of(wrap_.any_of().begin(), wrap_.any_of().end(),
                       [&](const v1::WrapSpec& one) { return Asks(one, node, recurse, numel); });
  }

  bool Never() const {
    const auto none = [](const v1::WrapSpec& one) { return one.policy() == "none"; };
    return wrap_.any_of().empty() ? none(wrap_)
                                  : std::all_of(wrap_.any_of().begin(), wrap_.any_of().end(), none);
  }

  int64_t Visit(Node* node, bool asked) {
    if (node->target != nullptr) return reports_[node->target];
    if (ignored_.count(node) > 0) return reports_[node] = 0;
    const int64_t num = Numel(node);
    const bool descends = asked && Any(*node, /*recurse=*/true, num);
    int64_t wrapped = 0;
    std::set<const Node*> seen;  // named_children() yields an object once
    for (Node* child : node->children) {
      const bool first = seen.insert(child->target == nullptr ? child : child->target).second;
      const int64_t report = Visit(child, descends);
      if (first) wrapped += report;
    }
    bool unit = descends && Any(*node, /*recurse=*/false, num - wrapped);
    for (const std::string& pattern : wrap_.wrap_patterns()) unit = unit || pattern == node->fqn;
    unit = unit || (node->parent == nullptr && wrap_.root_unit() != "by_policy");
    unit = unit || (mixed_ && !Never() && In(*node->spec, {"BatchNorm1d"}));
    if (unit) units_.insert(node->fqn);
    return reports_[node] = unit ? num : wrapped;
  }

  const v1::WrapSpec& wrap_;
  const bool mixed_;  // mixed precision
  std::map<std::string, Node> nodes_;
  std::vector<Node*> order_;
  std::map<std::string, std::string> names_;  // of parameters -> storage
  std::vector<std::pair<Node*, const v1::Parameter*>> ties_;
  std::map<std::string, Storage> storages_;
  std::set<const Node*> ignored_;
  std::set<std::string> ignored_storages_;
  std::set<std::string> units_;
  std::map<const Node*, int64_t> reports_;
};

std::string ModuleOf(const v1::Unit& unit) { return unit.fqn().substr(0, unit.fqn().find(':')); }

bool Inside(const std::string& fqn, const std::string& module) {
  return module.empty() || fqn == module || absl::StartsWith(fqn, module + ".");
}

// What holds of each unit and of their order.
void CheckUnits(const v1::Plan& plan) {
  std::set<std::string> seen;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    EXPECT_TRUE(seen.insert(unit.fqn()).second) << unit.fqn();
    for (const DType dtype : {unit.original_dtype(), unit.param_dtype(), unit.reduce_dtype(),
                              unit.gradient_dtype(), unit.unsynced_gradient_dtype()}) {
      EXPECT_NE(dtype, v1::DTYPE_UNSPECIFIED);
    }
    int64_t numel = 0, trainable = 0;
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      EXPECT_TRUE(Inside(parameter.fqn(), ModuleOf(unit)));
      numel += parameter.numel();
      trainable += parameter.requires_grad() ? parameter.numel() : 0;
    }
    EXPECT_EQ(unit.numel(), numel);
    EXPECT_EQ(unit.trainable_numel(), trainable);
    for (const v1::UnitBuffer& buffer : unit.buffers()) {
      EXPECT_NE(buffer.buffer_dtype(), v1::DTYPE_UNSPECIFIED);
      EXPECT_TRUE(Inside(buffer.fqn(), ModuleOf(unit)));
    }
    if (!unit.has_enclosing_unit()) continue;
    ASSERT_GT(unit.enclosing_unit(), i);
    EXPECT_TRUE(Inside(ModuleOf(unit), ModuleOf(plan.units(unit.enclosing_unit()))));
    // Nothing between the two is around it.
    for (int k = i + 1; k < unit.enclosing_unit(); ++k)
      EXPECT_FALSE(Inside(ModuleOf(unit), ModuleOf(plan.units(k))));
  }
}

void CheckAgainst(const Reference& reference, const v1::Plan& plan, bool* any_moved) {
  std::set<std::string> units;
  std::map<std::string, std::string> found;  // storage -> unit
  std::map<std::string, v1::DType> dtypes;
  for (const v1::Unit& unit : plan.units()) {
    units.insert(ModuleOf(unit));
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      EXPECT_TRUE(found.emplace(parameter.fqn(), ModuleOf(unit)).second) << parameter.fqn();
      dtypes[parameter.fqn()] = unit.original_dtype();
    }
  }
  EXPECT_EQ(units, reference.units());
  for (const std::string& fqn : plan.orphans()) EXPECT_TRUE(found.emplace(fqn, "-").second);
  for (const std::string& fqn : plan.ignored()) EXPECT_TRUE(found.emplace(fqn, "ignored").second);
  EXPECT_EQ(found.size(), reference.storages().size());
  for (const auto& [fqn, storage] : reference.storages()) {
    bool moved = false;
    const std::string home = reference.HomeOf(storage, &moved);
    EXPECT_EQ(found[fqn], reference.Ignored(fqn) ? "ignored" : home) << fqn;
    *any_moved |= moved && !reference.Ignored(fqn);
    if (dtypes.count(fqn) > 0) {
      EXPECT_EQ(DTypeName(dtypes[fqn]), storage.dtype);
    }
  }
}

TEST(PlanPropertyTest, EveryPolicyAgreesWithTheRecursionWordByWord) {
  int planned = 0, moved_ones = 0, negative = 0;
  for (unsigned seed = 0; seed < kTrees; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TreeMaker maker(seed);
    const v1::ModelSpec model = maker.Make();
    ASSERT_TRUE(ValidateModelSpec(model).ok()) << ValidateModelSpec(model);
    v1::WrapSpec wrap = maker.Wrap();
    v1::MixedPrecisionSpec precision;
    // float16, which no parameter has: mixed precision is on for all or none.
    const bool mixed = maker.Below(3) == 0;
    if (mixed) precision.set_param_dtype("float16");
    const auto plan = TryPlan(model, wrap, precision);
    if (!plan.ok()) {
      // Everything ignored: the only thing that can be wrong with these.
      EXPECT_EQ(Field(plan.status()), "wrap.ignore") << plan.status();
      continue;
    }
    ++planned;
    CheckUnits(*plan);
    bool moved = false;
    CheckAgainst(Reference(model, wrap, mixed), *plan, &moved);
    moved_ones += moved;
    negative += absl::StrContains(NotesOf(*plan), "each reports what is tied");
    const bool has_root = plan->units_size() > 0 && plan->units().rbegin()->fqn().empty();
    EXPECT_TRUE(has_root || wrap.root_unit() == "by_policy");
    EXPECT_TRUE(plan->orphans().empty() || !has_root);
    EXPECT_EQ(plan->plan_fingerprint(), PlanFingerprint(plan->units()));
    EXPECT_EQ(TryPlan(model, wrap, precision)->SerializeAsString(), plan->SerializeAsString());
    wrap.set_ties("reject");
    EXPECT_EQ(TryPlan(model, wrap, precision).ok(), !moved);
  }
  // Seeds are fixed, so these say that what is to be tried is tried.
  EXPECT_GT(planned, kTrees * 3 / 4);
  EXPECT_GT(moved_ones, 20);
  EXPECT_GT(negative, 0);
}

TEST(PlanPropertyTest, ExplanationsAgreeWithThePlan) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TreeMaker maker(seed);
    const v1::ModelSpec model = maker.Make();
    const auto resolved = ResolveJobSpec(JobOf(model, maker.Wrap()));
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const auto plan = MakePlan(model, *resolved);
    if (!plan.ok()) continue;
    std::set<std::string> units;
    for (const v1::Unit& unit : plan->units()) units.insert(ModuleOf(unit));
    const auto index = ModelIndex::Create(model);
    for (const ModelIndex::Module& module : index->modules()) {
      const auto why = ExplainModule(*resolved, module.fqn);
      ASSERT_TRUE(why.ok()) << why.status();
      if (module.same_as < 0) {
        EXPECT_EQ(why->is_unit(), units.count(module.fqn) > 0) << module.fqn;
      }
      EXPECT_GT(why->reasons_size(), 0);
    }
  }
}

}  // namespace
}  // namespace tessera
