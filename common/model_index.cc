// ModelIndex::Create: one walk lists modules and parameters and checks each by itself; what refers
// to something else (aliases, ties) is resolved afterwards, when every FQN is known. Maps of names
// are made only for models that have such: most have none or few, and maps of a million names cost
// more than the rest.
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/model_checks.h"
#include "common/model_spec.h"
#include "common/status_macros.h"

namespace tessera {

class ModelIndexBuilder {
 public:
  explicit ModelIndexBuilder(const v1::ModelSpec& spec) : spec_(spec) {}

  absl::StatusOr<ModelIndex> Build();

 private:
  // A parameter with `tied_to`.
  struct Tie {
    const v1::Parameter* spec;
    std::string fqn;
    int module;
  };

  absl::Status AddModule(const v1::Module& module, std::string fqn, int parent, int depth);
  absl::Status AddOwn(int module);
  absl::Status AddParameter(const v1::Parameter& parameter, std::string fqn, int module);
  void ListParametersOfModules();
  absl::Status ResolveAliases();
  // The storage that a tie names.
  absl::StatusOr<int> HolderOf(const Tie& tie) const;
  absl::Status ResolveTies();
  absl::Status CountShared(absl::string_view fqn);
  absl::Status AddUse(int storage, ModelIndex::Parameter::Use use);
  // Adds the uses that alias `alias` makes of all below `target`, under the name `fqn`.
  absl::Status AddAliasUses(int alias, int object, int target, const std::string& fqn, int depth);

  const v1::ModelSpec& spec_;
  ModelIndex index_;
  std::vector<Tie> ties_;
  // What a tie may name: FQN -> index in parameters_, and in ties_. The names are those of
  // index_ and ties_, which have stopped growing.
  absl::flat_hash_map<absl::string_view, int> storage_by_fqn_;
  absl::flat_hash_map<absl::string_view, int> tie_by_fqn_;
  bool has_alias_ = false;
  // Where there are aliases, for each module its parameters, ties included: name and storage.
  std::vector<std::vector<std::pair<absl::string_view, int>>> parameters_of_;
  int64_t total_numel_ = 0;
  int64_t shared_ = 0;  // modules and parameters under names of ties and aliases
};

namespace {

// Fails where a tie and its holder cannot be one storage.
absl::Status CheckTie(const v1::Parameter& tie, absl::string_view fqn,
                      const ModelIndex::Parameter& holder) {
  const auto differs = [&](absl::string_view what, absl::string_view own, absl::string_view other) {
    return InvalidField(fqn,
                        absl::StrCat("has the ", what, " ", own, " and is tied to \"", holder.fqn,
                                     "\", which has ", other, "; make them the same"));
  };
  const auto shape = [](const v1::Parameter& parameter) {
    return absl::StrCat("[", absl::StrJoin(parameter.shape(), ","), "]");
  };
  if (shape(tie) != shape(*holder.spec)) {
    return differs("shape", shape(tie), shape(*holder.spec));
  }
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, ParameterDType(tie, fqn));
  if (dtype != holder.dtype) return differs("dtype", DTypeName(dtype), DTypeName(holder.dtype));
  if (!tie.has_requires_grad() || tie.requires_grad() == holder.requires_grad) {
    return absl::OkStatus();
  }
  return differs("requires_grad", tie.requires_grad() ? "true" : "false",
                 holder.requires_grad ? "true" : "false");
}

}  // namespace

absl::Status ModelIndexBuilder::AddModule(const v1::Module& module, std::string fqn, int parent,
                                          int depth) {
  if (depth > kMaxModuleDepth) return TooDeep(fqn);
  TESSERA_RETURN_IF_ERROR(CheckClassNames(module, fqn));
  if (!module.same_as().empty()) {
    TESSERA_RETURN_IF_ERROR(CheckAlias(module, fqn));
    has_alias_ = true;
  }
  TESSERA_RETURN_IF_ERROR(CheckNames(module, fqn));
  if (module.has_wrap_config()) TESSERA_RETURN_IF_ERROR(CheckWrapConfig(module, fqn));
  const int self = static_cast<int>(index_.modules_.size());
  index_.modules_.push_back({.spec = &module, .fqn = std::move(fqn), .parent = parent});
  TESSERA_RETURN_IF_ERROR(AddOwn(self));
  for (const v1::Module& child : module.children()) {
    TESSERA_RETURN_IF_ERROR(
        AddModule(child, JoinFqn(index_.modules_[self].fqn, child.name()), self, depth + 1));
  }
  index_.modules_[self].subtree_end = static_cast<int>(index_.modules_.size());
  return absl::OkStatus();
}

absl::Status ModelIndexBuilder::AddOwn(int module) {
  const v1::Module& spec = *index_.modules_[module].spec;
  const std::string& fqn = index_.modules_[module].fqn;  // no module is added meanwhile
  for (const v1::Parameter& parameter : spec.parameters()) {
    TESSERA_RETURN_IF_ERROR(AddParameter(parameter, JoinFqn(fqn, parameter.name()), module));
  }
  for (const v1::Buffer& buffer : spec.buffers()) {
    TESSERA_RETURN_IF_ERROR(CheckBuffer(buffer, JoinFqn(fqn, buffer.name())));
  }
  return absl::OkStatus();
}

absl::Status ModelIndexBuilder::AddParameter(const v1::Parameter& parameter, std::string fqn,
                                             int module) {
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, ParameterDType(parameter, fqn));
  TESSERA_ASSIGN_OR_RETURN(const int64_t numel, ParameterNumel(parameter, fqn));
  if (parameter.has_init()) TESSERA_RETURN_IF_ERROR(CheckInit(parameter.init(), fqn));
  if (!parameter.tied_to().empty()) {
    ties_.push_back({.spec = &parameter, .fqn = std::move(fqn), .module = module});
    return absl::OkStatus();
  }
  if (numel > kMaxModelNumel - total_numel_) {
    return InvalidField(
        fqn, absl::StrCat("makes the model larger than ", kMaxModelNumel, " elements; shrink it"));
  }
  total_numel_ += numel;
  index_.parameters_.push_back(
      {.spec = &parameter,
       .fqn = std::move(fqn),
       .module = module,
       .numel = numel,
       .dtype = dtype,
       .requires_grad = !parameter.has_requires_grad() || parameter.requires_grad(),
       .uses = {}});
  return absl::OkStatus();
}

absl::Status ModelIndexBuilder::CountShared(absl::string_view fqn) {
  if (++shared_ <= kMaxSharedUses) return absl::OkStatus();
  return InvalidField(fqn, absl::StrCat("is one of more than ", kMaxSharedUses,
                                        " uses of shared modules and parameters; share fewer"));
}

absl::Status ModelIndexBuilder::AddUse(int storage, ModelIndex::Parameter::Use use) {
  TESSERA_RETURN_IF_ERROR(CountShared(use.fqn));
  index_.parameters_[storage].uses.push_back(std::move(use));
  return absl::OkStatus();
}

absl::StatusOr<int> ModelIndexBuilder::HolderOf(const Tie& tie) const {
  const std::string& holder = tie.spec->tied_to();
  if (const auto found = storage_by_fqn_.find(holder); found != storage_by_fqn_.end()) {
    return found->second;
  }
  if (holder == tie.fqn) return InvalidField(tie.fqn, "is tied to itself; drop tied_to");
  const auto chained = tie_by_fqn_.find(holder);
  if (chained == tie_by_fqn_.end()) {
    return InvalidField(tie.fqn,
                        absl::StrCat("is tied to \"", holder, "\", which is no parameter; ",
                                     "give the FQN of the one that holds the storage"));
  }
  return InvalidField(tie.fqn,
                      absl::StrCat("is tied to \"", holder, "\", which is itself tied to \"",
                                   ties_[chained->second].spec->tied_to(),
                                   "\"; tie both to the one that holds the storage"));
}

absl::Status ModelIndexBuilder::ResolveTies() {
  if (ties_.empty()) return absl::OkStatus();
  storage_by_fqn_.reserve(index_.parameters_.size());
  tie_by_fqn_.reserve(ties_.size());
  for (size_t i = 0; i < index_.parameters_.size(); ++i)
    storage_by_fqn_.emplace(index_.parameters_[i].fqn, i);
  for (size_t i = 0; i < ties_.size(); ++i) tie_by_fqn_.emplace(ties_[i].fqn, i);
  for (const Tie& tie : ties_) {
    TESSERA_ASSIGN_OR_RETURN(const int holder, HolderOf(tie));
    TESSERA_RETURN_IF_ERROR(CheckTie(*tie.spec, tie.fqn, index_.parameters_[holder]));
    TESSERA_RETURN_IF_ERROR(
        AddUse(holder, {.fqn = tie.fqn, .module = tie.module, .object = tie.module}));
  }
  return absl::OkStatus();
}

absl::Status ModelIndexBuilder::AddAliasUses(int alias, int object, int target,
                                             const std::string& fqn, int depth) {
  if (depth > kMaxModuleDepth) return TooDeep(fqn);
  TESSERA_RETURN_IF_ERROR(CountShared(fqn));
  const ModelIndex::Module& module = index_.modules_[target];
  // An alias below the target stands for its own target, which comes earlier, so this ends.
  if (module.same_as >= 0) {
    return AddAliasUses(alias, module.same_as, module.same_as, fqn, depth + 1);
  }
  for (const auto& [name, storage] : parameters_of_[target]) {
    TESSERA_RETURN_IF_ERROR(
        AddUse(storage, {.fqn = JoinFqn(fqn, name), .module = alias, .object = object}));
  }
  for (int child = target + 1; child < module.subtree_end;
       child = index_.modules_[child].subtree_end) {
    const std::string child_fqn = JoinFqn(fqn, index_.modules_[child].spec->name());
    TESSERA_RETURN_IF_ERROR(AddAliasUses(alias, object, child, child_fqn, depth + 1));
  }
  return absl::OkStatus();
}

// Own storages first, then ties: the order in which an alias uses them.
void ModelIndexBuilder::ListParametersOfModules() {
  parameters_of_.resize(index_.modules_.size());
  for (size_t i = 0; i < index_.parameters_.size(); ++i) {
    const ModelIndex::Parameter& parameter = index_.parameters_[i];
    parameters_of_[parameter.module].emplace_back(parameter.spec->name(), i);
  }
  for (const Tie& tie : ties_) {
    parameters_of_[tie.module].emplace_back(tie.spec->name(),
                                            storage_by_fqn_.at(tie.spec->tied_to()));
  }
}

absl::Status ModelIndexBuilder::ResolveAliases() {
  if (!has_alias_) return absl::OkStatus();
  ListParametersOfModules();
  absl::flat_hash_map<absl::string_view, int> module_by_fqn;
  module_by_fqn.reserve(index_.modules_.size());
  for (size_t i = 0; i < index_.modules_.size(); ++i)
    module_by_fqn.emplace(index_.modules_[i].fqn, i);
  for (int i = 0; i < static_cast<int>(index_.modules_.size()); ++i) {
    ModelIndex::Module& module = index_.modules_[i];
    const std::string& target_fqn = module.spec->same_as();
    if (target_fqn.empty()) continue;
    const auto found = module_by_fqn.find(target_fqn);
    if (found == module_by_fqn.end() || found->second >= i) {
      return InvalidField(module.fqn,
                          absl::StrCat("is same_as \"", target_fqn,
                                       "\", which is no earlier module; give the FQN of one"));
    }
    if (index_.Encloses(found->second, i)) {
      return InvalidField(module.fqn,
                          absl::StrCat("is same_as \"", target_fqn,
                                       "\", which encloses it; a module cannot hold itself"));
    }
    if (index_.modules_[found->second].same_as >= 0) {
      return InvalidField(
          module.fqn,
          absl::StrCat("is same_as \"", target_fqn, "\", which is itself an alias; name \"",
                       index_.modules_[found->second].spec->same_as(), "\""));
    }
    module.same_as = found->second;
    TESSERA_RETURN_IF_ERROR(AddAliasUses(i, module.same_as, module.same_as, module.fqn, 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelIndex> ModelIndexBuilder::Build() {
  const v1::Module& root = spec_.root();
  if (!spec_.has_root()) return InvalidField("root", "is absent; give the model's root module");
  if (!root.name().empty())
    return InvalidField("root", absl::StrCat("is named \"", root.name(), "\"; its name is \"\""));
  if (!root.same_as().empty()) return InvalidField("root", "has same_as; the root is no alias");
  TESSERA_RETURN_IF_ERROR(AddModule(root, "", -1, 1));
  if (index_.parameters_.empty() && ties_.empty()) {
    return InvalidField("root", "has no parameters anywhere; there is nothing to train");
  }
  TESSERA_RETURN_IF_ERROR(ResolveTies());
  TESSERA_RETURN_IF_ERROR(ResolveAliases());
  return std::move(index_);
}

absl::StatusOr<ModelIndex> ModelIndex::Create(const v1::ModelSpec& spec) {
  return ModelIndexBuilder(spec).Build();
}

}  // namespace tessera
