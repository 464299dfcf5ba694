#include "coordinator/unit_settings.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/mixed_precision.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"

namespace tessera {
namespace {

// Strategies of one family differ only in when a unit is freed.
int Family(const std::string& strategy) {
  if (strategy == "full_shard" || strategy == "shard_grad_op") return 1;
  return absl::StartsWith(strategy, "hybrid") ? 2 : 3;
}

// `spec` as a unit with `config` has it.
void MergeInto(const v1::WrapConfig& config, v1::MixedPrecisionSpec* spec) {
  if (config.has_param_dtype()) spec->set_param_dtype(config.param_dtype());
  if (config.has_reduce_dtype()) spec->set_reduce_dtype(config.reduce_dtype());
  if (config.has_buffer_dtype()) spec->set_buffer_dtype(config.buffer_dtype());
  if (config.has_keep_grads_in_reduce_dtype()) {
    spec->clear_keep_low_precision_grads();
    spec->set_keep_grads_in_reduce_dtype(config.keep_grads_in_reduce_dtype());
  }
  if (config.has_unsynced_grad_dtype()) spec->set_unsynced_grad_dtype(config.unsynced_grad_dtype());
}

// Whether a root casts its inputs is asked of cast_root_forward_inputs, of others of
// cast_forward_inputs.
bool CastsInputs(const v1::MixedPrecisionSpec& spec, bool is_root) {
  if (!is_root) return spec.cast_forward_inputs();
  return !spec.has_cast_root_forward_inputs() || spec.cast_root_forward_inputs();
}

// `config` without what is as the unit would have it anyway.
v1::WrapConfig Differing(v1::WrapConfig config, const v1::MixedPrecisionSpec& base,
                         const v1::JobSpec& job, bool is_root) {
  if (config.param_dtype() == base.param_dtype()) config.clear_param_dtype();
  if (config.reduce_dtype() == base.reduce_dtype()) config.clear_reduce_dtype();
  if (config.buffer_dtype() == base.buffer_dtype()) config.clear_buffer_dtype();
  if (config.keep_grads_in_reduce_dtype() ==
      (base.keep_grads_in_reduce_dtype() || base.keep_low_precision_grads())) {
    config.clear_keep_grads_in_reduce_dtype();
  }
  const bool base_reduces = base.unsynced_grad_dtype() == "reduce";
  if ((config.unsynced_grad_dtype() == "reduce") == base_reduces)
    config.clear_unsynced_grad_dtype();
  if (config.cast_forward_inputs() == CastsInputs(base, is_root))
    config.clear_cast_forward_inputs();
  if (config.strategy() == job.mesh().strategy()) config.clear_strategy();
  if (config.param_align_bytes() == job.wrap().param_align_bytes())
    config.clear_param_align_bytes();
  if (config.shard_align_bytes() == job.wrap().shard_align_bytes())
    config.clear_shard_align_bytes();
  if (config.reshard_group() == job.mesh().reshard_group()) config.clear_reshard_group();
  return config;
}

}  // namespace

absl::StatusOr<UnitSettings> UnitSettings::Create(const ModelIndex& index,
                                                  const v1::JobSpec& resolved,
                                                  const WrapChoice& choice) {
  std::vector<std::string> fqns;
  for (const v1::WrapOverride& over : resolved.wrap().overrides()) fqns.push_back(over.fqn());
  TESSERA_ASSIGN_OR_RETURN(FqnMatcher matcher, FqnMatcher::Create("wrap.overrides", fqns));
  return UnitSettings(index, resolved, choice, std::move(matcher));
}

std::vector<UnitSettings::Source> UnitSettings::SourcesOf(int module, const std::string& unit_fqn) {
  std::vector<Source> sources;
  const ModelIndex::Module& at = index_.modules()[module];
  if (at.spec->has_wrap_config()) sources.push_back({"its wrap_config", at.spec->wrap_config()});
  if (matcher_.empty()) return sources;
  auto matched = matcher_.Match(at.fqn);
  // One of several units of a module may be named by its own name.
  if (unit_fqn != at.fqn && matched.empty()) matched = matcher_.Match(unit_fqn);
  for (const int i : matched) {
    const v1::WrapOverride& over = job_.wrap().overrides(i);
    sources.push_back(
        {absl::StrCat("wrap.overrides[", i, "] (\"", over.fqn(), "\")"), over.config()});
  }
  return sources;
}

// What the unit would be told if nobody said anything of it.
v1::MixedPrecisionSpec UnitSettings::BaseOf(int module) const {
  v1::MixedPrecisionSpec base = job_.mixed_precision();
  if (!choice_.full_precision[module]) return base;
  base.clear_param_dtype();
  base.clear_reduce_dtype();
  base.clear_buffer_dtype();
  return base;
}

absl::Status UnitSettings::CheckStrategy(const Source& source, int module) const {
  // A plan made without a mesh is nobody's to check.
  if (!source.config.has_strategy() || !job_.mesh().has_strategy() ||
      Family(job_.mesh().strategy()) == Family(source.config.strategy())) {
    return absl::OkStatus();
  }
  const std::string& fqn = index_.modules()[module].fqn;
  return InvalidField(
      source.name == "its wrap_config" ? (fqn.empty() ? "root" : fqn) : "wrap.overrides",
      absl::StrCat(source.name, " has the strategy ", source.config.strategy(),
                   ", which does not go with mesh.strategy ", job_.mesh().strategy(),
                   "; use full_shard with shard_grad_op, or the two hybrid ones together"));
}

absl::Status UnitSettings::Apply(int module, v1::Unit* unit) {
  const bool is_root = module == 0;
  const v1::MixedPrecisionSpec base = BaseOf(module);
  v1::WrapConfig config;
  for (const Source& source : SourcesOf(module, unit->fqn())) {
    TESSERA_RETURN_IF_ERROR(CheckStrategy(source, module));
    MergeWrapConfig(source.config, &config);
  }
  TESSERA_RETURN_IF_ERROR(CanonicaliseWrapConfig("", &config));
  v1::MixedPrecisionSpec spec = base;
  MergeInto(config, &spec);
  TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes, ResolveDTypes(unit->original_dtype(), spec));
  unit->set_param_dtype(dtypes.param);
  unit->set_reduce_dtype(dtypes.reduce);
  unit->set_gradient_dtype(dtypes.gradient);
  unit->set_unsynced_gradient_dtype(dtypes.unsynced_gradient);
  // What is kept out of mixed precision meets inputs that are not; elsewhere FSDP casts only where
  // it is told a param_dtype, and then also to the dtype that the unit has anyway.
  const bool casts =
      config.has_cast_forward_inputs() ? config.cast_forward_inputs() : CastsInputs(spec, is_root);
  if (choice_.full_precision[module] || (casts && !spec.param_dtype().empty())) {
    unit->set_input_dtype(dtypes.param);
  }
  for (v1::UnitBuffer& buffer : *unit->mutable_buffers()) {
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, ResolveBufferDType(buffer.original_dtype(), spec));
    buffer.set_buffer_dtype(dtype);
  }
  const v1::WrapConfig differing = Differing(std::move(config), base, job_, is_root);
  if (differing.ByteSizeLong() > 0) *unit->mutable_overrides() = differing;
  return absl::OkStatus();
}

absl::Status UnitSettings::CheckAllUsed() const {
  const int unused = matcher_.FirstUnused();
  if (unused < 0) return absl::OkStatus();
  return InvalidField(absl::StrCat("wrap.overrides[", unused, "].fqn"),
                      absl::StrCat("\"", job_.wrap().overrides(unused).fqn(),
                                   "\" matches no unit of the plan; name one, or make it a unit"));
}

}  // namespace tessera
