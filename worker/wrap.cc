#include "worker/wrap.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"
#include "worker/parameter_init.h"

namespace tessera {
namespace {

std::string LastSegment(const std::string& name) { return name.substr(name.rfind('.') + 1); }

std::string Shown(const std::string& fqn) {
  return fqn.empty() ? "the root" : absl::StrCat("module \"", fqn, "\"");
}

absl::Status CheckValues(const std::string& fqn, const WrapParameter& parameter) {
  if (parameter.values.empty()) return absl::OkStatus();
  if (!parameter.tied_to.empty()) {
    return InvalidField(fqn, absl::StrCat("is tied to \"", parameter.tied_to,
                                          "\" and has values of its own; drop them"));
  }
  __int128 numel = 1;
  for (const int64_t extent : parameter.shape) {
    numel *= extent;
    if (extent < 0 || numel > kMaxModelNumel) break;
  }
  if (numel == static_cast<__int128>(parameter.values.size())) return absl::OkStatus();
  return InvalidField(
      fqn, absl::StrCat("has ", parameter.values.size(), " values, which do not make the shape [",
                        absl::StrJoin(parameter.shape, ", "), "]"));
}

absl::Status CheckPlace(const WrapModule& child, const std::string& parent,
                        const std::string& fqn) {
  const bool whole = child.wrapped || child.name.find('.') != std::string::npos;
  if (!whole || child.name == fqn) return absl::OkStatus();
  return InvalidField(child.name,
                      absl::StrCat("is in ", Shown(parent), ", where its FQN is \"", fqn, "\"; ",
                                   child.wrapped ? "wrap" : "name", " it as that"));
}

// A module in the coordinator's words.
absl::Status Describe(const WrapModule& module, const std::string& fqn, int depth,
                      v1::Module* described, v1::ModuleAnnouncement* announcement) {
  if (depth > kMaxModuleDepth) {
    return InvalidField(fqn, absl::StrCat("is nested more than ", kMaxModuleDepth, " deep"));
  }
  described->set_name(LastSegment(fqn));
  described->set_class_name(module.class_name);
  for (const std::string& base : module.base_classes) described->add_base_classes(base);
  for (const WrapParameter& parameter : module.parameters) {
    TESSERA_RETURN_IF_ERROR(CheckValues(JoinFqn(fqn, parameter.name), parameter));
    v1::Parameter* added = described->add_parameters();
    added->set_name(parameter.name);
    for (const int64_t extent : parameter.shape) added->add_shape(extent);
    added->set_dtype(DTypeName(parameter.dtype));
    if (!parameter.requires_grad) added->set_requires_grad(false);
    if (parameter.init.has_value()) *added->mutable_init() = *parameter.init;
    added->set_tied_to(parameter.tied_to);
  }
  for (const v1::Buffer& buffer : module.buffers) *described->add_buffers() = buffer;
  if (module.wrap.has_value()) described->set_wrap(*module.wrap);
  if (module.wrap_config.has_value()) *described->mutable_wrap_config() = *module.wrap_config;
  for (const WrapModule& child : module.children) {
    const std::string child_fqn = JoinFqn(fqn, LastSegment(child.name));
    TESSERA_RETURN_IF_ERROR(CheckPlace(child, fqn, child_fqn));
    v1::Module* added = described->add_children();
    if (child.wrapped) {
      added->set_name(LastSegment(child_fqn));
      announcement->add_sealed(child_fqn);
      continue;
    }
    TESSERA_RETURN_IF_ERROR(Describe(child, child_fqn, depth + 1, added, announcement));
  }
  return absl::OkStatus();
}

}  // namespace

// One call of Wrap or AutoWrap.
class Wrapping {
 public:
  Wrapping(WrapBuilder* builder, WrapModule& module) : builder_(*builder), module_(module) {}

  absl::Status Run(bool by_policy, const std::optional<v1::WrapSpec>& policy,
                   const v1::WrapConfig& overrides) {
    std::shared_ptr<const WrapBuilder::Scope> scope;
    v1::ModuleAnnouncement announcement;
    {
      MutexLock lock(builder_.mutex_);
      scope = builder_.scope_;
      announcement.set_dtype_changes(builder_.dtype_changes_);
    }
    if (scope == nullptr) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(builder_.CheckOpen());
    if (module_.wrapped) {
      return absl::FailedPreconditionError(
          absl::StrCat(Shown(module_.name), " is wrapped already; wrap a module once"));
    }
    announcement.set_fqn(module_.name);
    if (by_policy) {
      v1::WrapSpec by_size;
      by_size.set_policy("size");
      const std::optional<v1::WrapSpec>& chosen = policy.has_value() ? policy : scope->policy;
      *announcement.mutable_policy() = chosen.value_or(by_size);
    }
    if (scope->config.ByteSizeLong() > 0) *announcement.mutable_defaults() = scope->config;
    if (overrides.ByteSizeLong() > 0) *announcement.mutable_overrides() = overrides;
    TESSERA_RETURN_IF_ERROR(
        Describe(module_, module_.name, 1, announcement.mutable_module(), &announcement));
    TESSERA_ASSIGN_OR_RETURN(const v1::AnnounceModuleResponse answer,
                             builder_.world_.announce(announcement));
    TESSERA_RETURN_IF_ERROR(CheckAnswer(answer));
    return Keep(answer);
  }

 private:
  static absl::Status CheckAnswer(const v1::AnnounceModuleResponse& answer) {
    bool good = answer.units_size() == answer.layouts_size();
    for (int i = 0; good && i < answer.units_size(); ++i) {
      const v1::UnitLayout& layout = answer.layouts(i);
      good = layout.parameters_size() == answer.units(i).parameters_size() &&
             layout.shard_numel() > 0 && layout.padded_numel() % layout.shard_numel() == 0;
    }
    if (good) return absl::OkStatus();
    return absl::InternalError(
        "the coordinator's units and layouts do not match; is it of the same build as the worker?");
  }

  // Unit by unit, so that no more than one is there whole and sliced at once.
  absl::Status Keep(const v1::AnnounceModuleResponse& answer) {
    Find(module_, module_.name);
    std::set<std::string> units(answer.empty_units().begin(), answer.empty_units().end());
    for (int i = 0; i < answer.units_size(); ++i) {
      const v1::Unit& unit = answer.units(i);
      units.insert(unit.fqn());
      // From a call that failed later on.
      if (!builder_.kept_.Has(unit.fqn())) {
        TESSERA_RETURN_IF_ERROR(
            builder_.kept_.Keep(unit, answer.layouts(i), builder_.rank(),
                                [&](int parameter, int64_t first, absl::Span<float> out) {
                                  return Fill(unit.parameters(parameter), first, out);
                                }));
      }
      for (const v1::UnitParameter& parameter : unit.parameters()) {
        const auto found = parameters_.find(parameter.fqn());
        if (found != parameters_.end()) std::vector<float>().swap(found->second->values);
      }
    }
    Mark(module_, module_.name, units);
    if (module_.name.empty()) {
      MutexLock lock(builder_.mutex_);
      builder_.complete_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status Fill(const v1::UnitParameter& parameter, int64_t first,
                    absl::Span<float> out) const {
    const auto found = parameters_.find(parameter.fqn());
    if (found == parameters_.end()) {
      return absl::InternalError(absl::StrCat("the coordinator's unit has a parameter \"",
                                              parameter.fqn(), "\" that was not announced"));
    }
    const std::vector<float>& values = found->second->values;
    if (values.empty()) {
      return FillParameter(static_cast<uint64_t>(builder_.job().seed()), parameter.fqn(),
                           parameter.init(), first, out);
    }
    std::copy_n(values.begin() + first, out.size(), out.begin());
    return absl::OkStatus();
  }

  void Find(WrapModule& module, const std::string& fqn) {
    for (WrapParameter& parameter : module.parameters)
      parameters_[JoinFqn(fqn, parameter.name)] = &parameter;
    for (WrapModule& child : module.children) {
      if (!child.wrapped) Find(child, JoinFqn(fqn, LastSegment(child.name)));
    }
  }

  static void Mark(WrapModule& module, const std::string& fqn, const std::set<std::string>& units) {
    if (units.count(fqn) > 0) {
      module.wrapped = true;
      module.name = fqn;
    }
    for (WrapModule& child : module.children) {
      if (!child.wrapped) Mark(child, JoinFqn(fqn, LastSegment(child.name)), units);
    }
  }

  WrapBuilder& builder_;
  WrapModule& module_;
  std::map<std::string, WrapParameter*> parameters_;  // by FQN
};

absl::StatusOr<EnableWrap> EnableWrap::Enter(WrapBuilder* builder, Defaults defaults) {
  if (builder == nullptr) return EnableWrap(nullptr);
  TESSERA_RETURN_IF_ERROR(CanonicaliseWrapConfig("config.", &defaults.config));
  MutexLock lock(builder->mutex_);
  if (builder->scope_ != nullptr) {
    return absl::FailedPreconditionError(
        "wrapping is enabled already: scopes of EnableWrap do not nest; leave the other first");
  }
  builder->scope_ = std::make_shared<const WrapBuilder::Scope>(
      WrapBuilder::Scope{std::move(defaults.config), std::move(defaults.policy)});
  return EnableWrap(builder);
}

EnableWrap::~EnableWrap() {
  if (builder_ == nullptr) return;
  MutexLock lock(builder_->mutex_);
  builder_->scope_ = nullptr;
}

absl::Status Wrap(WrapBuilder* builder, WrapModule& module, const v1::WrapConfig& overrides) {
  if (builder == nullptr) return absl::OkStatus();
  return builder->Note(Wrapping(builder, module).Run(/*by_policy=*/false, std::nullopt, overrides));
}

absl::Status AutoWrap(WrapBuilder* builder, WrapModule& module,
                      const std::optional<v1::WrapSpec>& policy, const v1::WrapConfig& overrides) {
  if (builder == nullptr) return absl::OkStatus();
  return builder->Note(Wrapping(builder, module).Run(/*by_policy=*/true, policy, overrides));
}

}  // namespace tessera
