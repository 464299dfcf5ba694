#include "coordinator/draft_planning.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/draft_module.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

// With absolute FQNs, from those of a plan in which the module `fqn` is the root.
SealedUnit Renamed(const v1::Unit& unit, const v1::UnitLayout& layout, const std::string& fqn) {
  const auto rename = [&](const std::string& planned) {
    // What a unit that was split off has behind its FQN begins with a colon.
    if (planned.empty() || planned[0] == ':') return absl::StrCat(fqn, planned);
    return JoinFqn(fqn, planned);
  };
  SealedUnit sealed{unit, {}};
  sealed.unit.set_fqn(rename(unit.fqn()));
  sealed.unit.clear_enclosing_unit();
  sealed.unit.clear_input_dtype();  // the root has one of its own
  sealed.layout.set_fqn(sealed.unit.fqn());
  sealed.layout.set_padded_numel(layout.padded_numel());
  sealed.layout.set_shard_numel(layout.shard_numel());
  for (int i = 0; i < layout.parameters_size(); ++i) {
    v1::UnitParameter& parameter = *sealed.unit.mutable_parameters(i);
    parameter.set_fqn(rename(parameter.fqn()));
    for (std::string& tied : *parameter.mutable_tied_fqns()) tied = rename(tied);
    v1::ParameterLayout* placed = sealed.layout.add_parameters();
    *placed = layout.parameters(i);
    placed->set_fqn(parameter.fqn());
  }
  for (v1::UnitBuffer& buffer : *sealed.unit.mutable_buffers())
    buffer.set_fqn(rename(buffer.fqn()));
  return sealed;
}

}  // namespace

void CopyJobsWrap(const v1::JobSpec& resolved, v1::WrapSpec* wrap) {
  wrap->set_root_unit(resolved.wrap().root_unit());
  wrap->set_ties(resolved.wrap().ties());
  wrap->set_mixed_dtypes(resolved.wrap().mixed_dtypes());
  wrap->set_param_align_bytes(resolved.wrap().param_align_bytes());
  wrap->set_shard_align_bytes(resolved.wrap().shard_align_bytes());
}

absl::StatusOr<SealedUnits> PlanModule(const v1::JobSpec& resolved, int world_size,
                                       const std::string& fqn, v1::Module module, v1::WrapSpec wrap,
                                       bool wraps_itself) {
  SealedUnits units;
  if (!HasParameters(module)) {
    // A model has a parameter, and a unit without any moves nothing: of these only the module
    // itself is of interest. A root by policy would hold nothing either.
    if (wraps_itself || fqn.empty()) units.emplace_back().unit.set_fqn(fqn);
    return units;
  }
  MakeTiesRelative(fqn, &module);
  module.clear_name();
  v1::JobSpec part = resolved;
  part.mutable_model()->clear_built();
  v1::ModelSpec* model = part.mutable_model()->mutable_spec();
  model->set_name(resolved.name());
  *model->mutable_root() = std::move(module);
  CopyJobsWrap(resolved, &wrap);
  if (wraps_itself) {
    wrap.set_root_unit("always");
  } else if (!fqn.empty()) {
    wrap.set_root_unit("by_policy");
  }
  *part.mutable_wrap() = std::move(wrap);
  const auto planned = [&]() -> absl::StatusOr<JobPlan> {
    TESSERA_ASSIGN_OR_RETURN(part, ResolveJobSpec(std::move(part)));
    return PlanJob(part, world_size);
  }();
  // What it names is as seen from the module.
  if (!planned.ok() && !fqn.empty()) {
    return Annotate(planned.status(), absl::StrCat("in module \"", fqn, "\""));
  }
  TESSERA_RETURN_IF_ERROR(planned.status());
  for (int i = 0; i < planned->plan.units_size(); ++i)
    units.push_back(Renamed(planned->plan.units(i), planned->layout.units(i), fqn));
  return units;
}

}  // namespace tessera
