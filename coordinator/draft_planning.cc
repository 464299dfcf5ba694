#include "coordinator/draft_planning.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/draft_module.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

// A module that need not be a unit is planned under this name, below a root that holds nothing of
// the model's.
constexpr char kModuleName[] = "m";

// "": it has no parameters.
std::string FirstDType(const v1::Module& module) {
  if (!module.parameters().empty()) return module.parameters(0).dtype();
  for (const v1::Module& child : module.children()) {
    std::string dtype = FirstDType(child);
    if (!dtype.empty()) return dtype;
  }
  return "";
}

v1::Module BelowARoot(v1::Module module) {
  VisitModules(&module, "", [&](const std::string&, v1::Module* visited) {
    for (v1::Parameter& parameter : *visited->mutable_parameters()) {
      if (!parameter.tied_to().empty())
        parameter.set_tied_to(JoinFqn(kModuleName, parameter.tied_to()));
    }
    return true;
  });
  const std::string dtype = FirstDType(module);
  v1::Module root;
  // A model has a parameter.
  v1::Parameter* filler = root.add_parameters();
  filler->set_name("filler");
  filler->add_shape(1);
  filler->set_dtype(dtype.empty() ? "float32" : dtype);
  module.set_name(kModuleName);
  *root.add_children() = std::move(module);
  return root;
}

// With absolute FQNs, from those of a plan in which the module `fqn` is called `name`.
SealedUnit Renamed(const v1::Unit& unit, const v1::UnitLayout& layout, const std::string& fqn,
                   absl::string_view name) {
  const auto rename = [&](absl::string_view planned) {
    const std::string relative = RelativeFqn(planned, name);
    return relative.empty() ? fqn : JoinFqn(fqn, relative);
  };
  SealedUnit sealed{unit, {}};
  sealed.unit.set_fqn(rename(unit.fqn()));
  sealed.unit.clear_enclosing_unit();
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
  return sealed;
}

}  // namespace

absl::StatusOr<SealedUnits> PlanModule(const v1::JobSpec& resolved, int world_size,
                                       const std::string& fqn, v1::Module module, v1::WrapSpec wrap,
                                       bool wraps_itself) {
  const bool is_root = fqn.empty() || wraps_itself;
  if (is_root && !HasParameters(module)) {
    // Nothing to plan, and a model has a parameter. A root by policy would hold nothing either.
    SealedUnits empty(1);
    empty[0].unit.set_fqn(fqn);
    return empty;
  }
  MakeTiesRelative(fqn, &module);
  module.clear_name();
  v1::JobSpec part = resolved;
  part.mutable_model()->clear_built();
  v1::ModelSpec* model = part.mutable_model()->mutable_spec();
  model->set_name(resolved.name());
  *model->mutable_root() = is_root ? std::move(module) : BelowARoot(std::move(module));
  wrap.set_root_unit(fqn.empty() ? resolved.wrap().root_unit() : "always");
  wrap.set_param_align_bytes(resolved.wrap().param_align_bytes());
  wrap.set_shard_align_bytes(resolved.wrap().shard_align_bytes());
  *part.mutable_wrap() = std::move(wrap);
  TESSERA_ASSIGN_OR_RETURN(part, ResolveJobSpec(std::move(part)));
  TESSERA_ASSIGN_OR_RETURN(const JobPlan planned, PlanJob(part, world_size));
  SealedUnits units;
  for (int i = 0; i < planned.plan.units_size(); ++i) {
    if (!is_root && planned.plan.units(i).fqn().empty()) continue;
    units.push_back(
        Renamed(planned.plan.units(i), planned.layout.units(i), fqn, is_root ? "" : kModuleName));
  }
  return units;
}

}  // namespace tessera
