#include "coordinator/planner.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/mixed_precision.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/wrap_policy.h"

namespace tessera {
namespace {

std::string Shown(absl::string_view unit_fqn) {
  return unit_fqn.empty() ? "the root unit" : absl::StrCat("unit \"", unit_fqn, "\"");
}

// For each module the nearest one that is a unit, itself included.
std::vector<int> NearestUnits(const ModelIndex& index, const std::vector<bool>& is_unit) {
  std::vector<int> nearest(index.modules().size(), 0);
  // Pre-order: a parent comes before its children.
  for (size_t i = 1; i < nearest.size(); ++i) {
    nearest[i] = is_unit[i] ? static_cast<int>(i) : nearest[index.modules()[i].parent];
  }
  return nearest;
}

// Whether everything that happens at `use` happens while `unit` is whole.
bool Covers(const ModelIndex& index, int unit, const ModelIndex::Parameter::Use& use) {
  if (index.Encloses(unit, use.module)) return true;
  const int target = index.modules()[use.module].same_as;
  // An alias runs the module object itself, and with it the units inside that object.
  return target >= 0 && (index.Encloses(target, unit) || index.Encloses(use.object, unit));
}

// The lowest unit that covers all uses of `parameter`.
int UnitOf(const ModelIndex& index, const std::vector<int>& nearest,
           const ModelIndex::Parameter& parameter, std::vector<std::string>* notes) {
  const int home = nearest[parameter.module];
  int unit = home;
  const ModelIndex::Parameter::Use* cause = nullptr;
  // Going up may uncover an alias that was covered, so from the first use again until none asks for
  // more.
  for (size_t i = 0; i < parameter.uses.size();) {
    if (Covers(index, unit, parameter.uses[i])) {
      ++i;
      continue;
    }
    if (cause == nullptr) cause = &parameter.uses[i];
    unit = nearest[index.modules()[unit].parent];
    i = 0;
  }
  if (unit != home) {
    notes->push_back(absl::StrCat(
        "\"", parameter.fqn, "\" is in ", Shown(index.modules()[unit].fqn), " instead of ",
        Shown(index.modules()[home].fqn), ", because \"", cause->fqn, "\" uses the same storage."));
  }
  return unit;
}

// Modules that are units, children before parents.
std::vector<int> PostOrder(const ModelIndex& index, const std::vector<bool>& is_unit) {
  std::vector<int> order, open;
  const auto close_before = [&](int module) {
    while (!open.empty() && index.modules()[open.back()].subtree_end <= module) {
      order.push_back(open.back());
      open.pop_back();
    }
  };
  for (int i = 0; i < static_cast<int>(is_unit.size()); ++i) {
    close_before(i);
    if (is_unit[i]) open.push_back(i);
  }
  close_before(static_cast<int>(is_unit.size()));
  return order;
}

void AddParameter(const ModelIndex::Parameter& parameter, v1::Unit* unit) {
  v1::UnitParameter* added = unit->add_parameters();
  added->set_fqn(parameter.fqn);
  *added->mutable_shape() = parameter.spec->shape();
  added->set_numel(parameter.numel);
  added->set_requires_grad(parameter.requires_grad);
  for (const ModelIndex::Parameter::Use& use : parameter.uses) added->add_tied_fqns(use.fqn);
  if (parameter.spec->has_init()) {
    *added->mutable_init() = parameter.spec->init();
  } else {
    added->mutable_init()->set_kind("normal");
  }
  if (added->init().kind() == "normal" && !added->init().has_std())
    added->mutable_init()->set_std(0.02);
  unit->set_numel(unit->numel() + parameter.numel);
}

// Puts every parameter into its unit. `unit_of_module` maps a unit's module to its index in
// plan->units.
absl::Status AssignParameters(const ModelIndex& index, const std::vector<int>& nearest,
                              const std::vector<int>& unit_of_module, v1::Plan* plan) {
  std::vector<std::string> notes;
  for (const ModelIndex::Parameter& parameter : index.parameters()) {
    v1::Unit* unit = plan->mutable_units(unit_of_module[UnitOf(index, nearest, parameter, &notes)]);
    if (unit->parameters().empty()) {
      unit->set_original_dtype(parameter.dtype);
    } else if (unit->original_dtype() != parameter.dtype) {
      return InvalidField(parameter.fqn,
                          absl::StrCat("is ", DTypeName(parameter.dtype), ", and \"",
                                       unit->parameters(0).fqn(), "\", which ", Shown(unit->fqn()),
                                       " holds too, is ", DTypeName(unit->original_dtype()),
                                       "; give them one dtype or wrap them apart"));
    }
    AddParameter(parameter, unit);
  }
  for (std::string& note : notes) plan->add_notes(std::move(note));
  return absl::OkStatus();
}

absl::Status SetDTypes(DType model_dtype, const v1::MixedPrecisionSpec& mixed_precision,
                       v1::Plan* plan) {
  for (v1::Unit& unit : *plan->mutable_units()) {
    if (unit.parameters().empty()) {
      // Moves nothing; but a dtype that is not set is a case for everybody who reads a plan.
      unit.set_original_dtype(model_dtype);
      if (unit.has_enclosing_unit()) {
        plan->add_notes(
            absl::StrCat("unit \"", unit.fqn(), "\" has no parameters left and moves nothing."));
      }
    }
    TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes,
                             ResolveDTypes(unit.original_dtype(), mixed_precision));
    unit.set_param_dtype(dtypes.param);
    unit.set_reduce_dtype(dtypes.reduce);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                  const v1::MixedPrecisionSpec& mixed_precision) {
  TESSERA_ASSIGN_OR_RETURN(const ModelIndex index, ModelIndex::Create(model));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<bool> is_unit, ChooseUnits(index, wrap));
  const std::vector<int> nearest = NearestUnits(index, is_unit);
  const std::vector<int> order = PostOrder(index, is_unit);
  v1::Plan plan;
  plan.set_model_name(model.name());
  std::vector<int> unit_of_module(index.modules().size(), -1);
  for (size_t i = 0; i < order.size(); ++i) unit_of_module[order[i]] = static_cast<int>(i);
  for (const int module : order) {
    v1::Unit* unit = plan.add_units();
    unit->set_fqn(index.modules()[module].fqn);
    unit->set_class_name(index.modules()[module].spec->class_name());
    const int parent = index.modules()[module].parent;
    if (parent >= 0) unit->set_enclosing_unit(unit_of_module[nearest[parent]]);
  }
  TESSERA_RETURN_IF_ERROR(AssignParameters(index, nearest, unit_of_module, &plan));
  TESSERA_RETURN_IF_ERROR(SetDTypes(index.parameters().front().dtype, mixed_precision, &plan));
  plan.set_plan_fingerprint(PlanFingerprint(plan.units()));
  return plan;
}

}  // namespace tessera
