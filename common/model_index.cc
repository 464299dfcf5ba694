// ModelIndex::Create: one walk lists modules and parameters and checks each by itself; what refers
// to something else (aliases, ties) is resolved afterwards, when every FQN is known.
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
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
  absl::flat_hash_map<std::string, int> module_by_fqn_;
  absl::flat_hash_map<std::string, int> storage_by_fqn_;  // parameter FQN -> index in parameters_
  absl::flat_hash_map<std::string, int> tie_by_fqn_;
  std::vector<Tie> ties_;
  // For each module its parameters: FQN's last segment and storage, ties included.
  std::vector<std::vector<std::pair<std::string, int>>> parameters_of_;
  int64_t total_numel_ = 0;
  int64_t shared_ = 0;  // modules and parameters under names of ties and aliases
};

namespace {

std::string Shown(absl::string_view fqn) { return fqn.empty() ? "root" : std::string(fqn); }

absl::Status TooDeep(absl::string_view fqn) {
  return InvalidField(fqn, absl::StrCat("is nested more than ", kMaxModuleDepth,
                                        " modules deep; flatten the model"));
}

// Fails for what cannot be a segment of an FQN.
absl::Status CheckName(absl::string_view name, absl::string_view parent_fqn,
                       absl::string_view what) {
  const auto bad = [&](absl::string_view message) {
    return InvalidField(Shown(parent_fqn), absl::StrCat("has a ", what, " ", message));
  };
  if (name.empty()) return bad("without a name; give it one");
  for (const char c : name) {
    if (c == '.')
      return bad(absl::StrCat("named \"", name, "\"; names hold no dot, nest modules instead"));
    if (absl::ascii_iscntrl(c)) return bad("whose name holds a control character; rename it");
  }
  return absl::OkStatus();
}

absl::Status CheckUnique(const v1::Module& module, absl::string_view fqn) {
  absl::flat_hash_set<absl::string_view> seen;
  const auto check = [&](const std::string& name, absl::string_view what) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckName(name, fqn, what));
    if (seen.insert(name).second) return absl::OkStatus();
    return InvalidField(
        JoinFqn(fqn, name),
        "is there twice; parameters, buffers and children of a module need names of their own");
  };
  for (const v1::Parameter& parameter : module.parameters()) {
    TESSERA_RETURN_IF_ERROR(check(parameter.name(), "parameter"));
  }
  for (const v1::Buffer& buffer : module.buffers()) {
    TESSERA_RETURN_IF_ERROR(check(buffer.name(), "buffer"));
  }
  for (const v1::Module& child : module.children()) {
    TESSERA_RETURN_IF_ERROR(check(child.name(), "child"));
  }
  return absl::OkStatus();
}

absl::Status CheckClassNames(const v1::Module& module, absl::string_view fqn) {
  const auto check = [&](absl::string_view name) -> absl::Status {
    for (const char c : name) {
      if (absl::ascii_iscntrl(c)) {
        return InvalidField(Shown(fqn), "has a class name with a control character; rename it");
      }
    }
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(check(module.class_name()));
  for (const std::string& name : module.base_classes()) TESSERA_RETURN_IF_ERROR(check(name));
  return absl::OkStatus();
}

absl::Status CheckAlias(const v1::Module& module, absl::string_view fqn) {
  if (module.class_name().empty() && module.base_classes().empty() && module.parameters().empty() &&
      module.buffers().empty() && module.children().empty() && !module.has_wrap()) {
    return absl::OkStatus();
  }
  return InvalidField(fqn, absl::StrCat("is same_as \"", module.same_as(),
                                        "\" and has content of its own; leave it only a name"));
}

absl::Status CheckBuffer(const v1::Buffer& buffer, absl::string_view fqn) {
  const absl::StatusOr<DType> dtype = ParseDType(buffer.dtype());
  if (!dtype.ok()) return InvalidField(fqn, dtype.status().message());
  for (const int64_t extent : buffer.shape()) {
    if (extent < 0)
      return InvalidField(fqn, absl::StrCat("has the extent ", extent, "; give 0 or more"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Numel(const v1::Parameter& parameter, absl::string_view fqn) {
  if (parameter.shape().empty()) {
    return InvalidField(fqn, "is a scalar, which cannot be sharded; give it the shape [1]");
  }
  int64_t numel = 1;
  for (const int64_t extent : parameter.shape()) {
    const std::string shape =
        absl::StrCat("has the shape [", absl::StrJoin(parameter.shape(), ","), "]");
    if (extent <= 0)
      return InvalidField(fqn, absl::StrCat(shape, "; every extent must be at least 1"));
    if (__builtin_mul_overflow(numel, extent, &numel)) {
      return InvalidField(fqn, absl::StrCat(shape, ", which overflows int64; correct it"));
    }
  }
  return numel;
}

absl::StatusOr<DType> ParameterDType(const v1::Parameter& parameter, absl::string_view fqn) {
  const absl::StatusOr<DType> dtype = ParseDType(parameter.dtype());
  if (!dtype.ok()) return InvalidField(fqn, dtype.status().message());
  if (!IsTrainable(*dtype)) {
    return InvalidField(fqn,
                        absl::StrCat("has the dtype ", DTypeName(*dtype),
                                     ", which cannot be trained; use float64, float32, float16 or "
                                     "bfloat16, or make it a buffer"));
  }
  return *dtype;
}

absl::Status CheckInit(const v1::Init& init, absl::string_view fqn) {
  const absl::string_view kind = init.kind();
  if (kind != "normal" && kind != "uniform" && kind != "zeros" && kind != "ones") {
    return InvalidField(
        fqn, absl::StrCat("has the init kind \"", kind, "\"; use normal, uniform, zeros or ones"));
  }
  if (init.has_std() && (kind != "normal" || !std::isfinite(init.std()) || init.std() < 0)) {
    return InvalidField(fqn,
                        "has an init with a std that it cannot use; std is for normal, 0 or more");
  }
  if (init.has_low() || init.has_high()) {
    const double low = init.has_low() ? init.low() : 0;
    const double high = init.has_high() ? init.high() : 1;
    if (kind != "uniform" || !std::isfinite(low) || !std::isfinite(high) || low >= high) {
      return InvalidField(
          fqn,
          "has an init with low or high that it cannot use; they are for uniform, and low "
          "is less than high");
    }
  }
  return absl::OkStatus();
}

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
  if (!module.same_as().empty()) TESSERA_RETURN_IF_ERROR(CheckAlias(module, fqn));
  TESSERA_RETURN_IF_ERROR(CheckUnique(module, fqn));
  const int self = static_cast<int>(index_.modules_.size());
  module_by_fqn_.emplace(fqn, self);
  index_.modules_.push_back({.spec = &module, .fqn = std::move(fqn), .parent = parent});
  parameters_of_.emplace_back();
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
  const std::string fqn = index_.modules_[module].fqn;
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
  TESSERA_ASSIGN_OR_RETURN(const int64_t numel, Numel(parameter, fqn));
  if (parameter.has_init()) TESSERA_RETURN_IF_ERROR(CheckInit(parameter.init(), fqn));
  if (!parameter.tied_to().empty()) {
    tie_by_fqn_.emplace(fqn, static_cast<int>(ties_.size()));
    ties_.push_back({.spec = &parameter, .fqn = std::move(fqn), .module = module});
    return absl::OkStatus();
  }
  if (numel > kMaxModelNumel - total_numel_) {
    return InvalidField(
        fqn, absl::StrCat("makes the model larger than ", kMaxModelNumel, " elements; shrink it"));
  }
  total_numel_ += numel;
  const int storage = static_cast<int>(index_.parameters_.size());
  storage_by_fqn_.emplace(fqn, storage);
  parameters_of_[module].emplace_back(parameter.name(), storage);
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
  for (const Tie& tie : ties_) {
    TESSERA_ASSIGN_OR_RETURN(const int holder, HolderOf(tie));
    TESSERA_RETURN_IF_ERROR(CheckTie(*tie.spec, tie.fqn, index_.parameters_[holder]));
    parameters_of_[tie.module].emplace_back(tie.spec->name(), holder);
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

absl::Status ModelIndexBuilder::ResolveAliases() {
  for (int i = 0; i < static_cast<int>(index_.modules_.size()); ++i) {
    ModelIndex::Module& module = index_.modules_[i];
    const std::string& target_fqn = module.spec->same_as();
    if (target_fqn.empty()) continue;
    const auto found = module_by_fqn_.find(target_fqn);
    if (found == module_by_fqn_.end() || found->second >= i) {
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
