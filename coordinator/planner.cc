#include "coordinator/planner.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/plan_notes.h"
#include "coordinator/unit_homes.h"
#include "coordinator/unit_notes.h"
#include "coordinator/unit_settings.h"
#include "coordinator/wrap_policy.h"

namespace tessera {
namespace {

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
  if (parameter.requires_grad) unit->set_trainable_numel(unit->trainable_numel() + parameter.numel);
}

// Builds one plan.
class PlanMaker {
 public:
  PlanMaker(const ModelIndex& index, const v1::JobSpec& job, const WrapChoice& choice,
            const UnitHomes& homes)
      : index_(index),
        job_(job),
        choice_(choice),
        homes_(homes),
        dtypes_(index.modules().size()),
        first_unit_(index.modules().size(), -1) {}

  absl::StatusOr<v1::Plan> Make();

 private:
  absl::Status FindDTypes();
  absl::Status MixedDTypes(const ModelIndex::Parameter& parameter, int module) const;
  absl::Status AddUnits();
  absl::StatusOr<std::string> SplitName(int module, DType dtype);
  void AssignParameters();
  absl::Status AddBuffers();
  absl::Status ApplySettings();
  // The module's unit of its `k`th dtype. The first comes last, and encloses the others.
  int UnitIndex(int module, size_t k) const {
    return first_unit_[module] + static_cast<int>(dtypes_[module].size() - 1 - k);
  }

  const ModelIndex& index_;
  const v1::JobSpec& job_;
  const WrapChoice& choice_;
  const UnitHomes& homes_;
  // For each module that is a unit, the dtypes of its parameters as they come.
  std::vector<absl::InlinedVector<DType, 1>> dtypes_;
  std::vector<int> first_unit_;                   // of the module: index in plan_.units()
  std::vector<int> module_of_;                    // of each unit
  absl::flat_hash_set<absl::string_view> names_;  // of modules; filled when a unit is split
  v1::Plan plan_;
};

absl::Status PlanMaker::MixedDTypes(const ModelIndex::Parameter& parameter, int module) const {
  size_t other = 0;
  while (homes_.unit[other] != module) ++other;
  return InvalidField(
      parameter.fqn,
      absl::StrCat("is ", DTypeName(parameter.dtype), ", and \"", index_.parameters()[other].fqn,
                   "\", which ", ShownUnit(index_.modules()[module].fqn), " holds too, is ",
                   DTypeName(index_.parameters()[other].dtype),
                   "; give them one dtype, wrap them apart or give wrap.mixed_dtypes split"));
}

absl::Status PlanMaker::FindDTypes() {
  const std::string& mixed = job_.wrap().mixed_dtypes();
  if (!mixed.empty() && mixed != "refuse" && mixed != "split") {
    return InvalidField("wrap.mixed_dtypes",
                        absl::StrCat("\"", mixed, "\" is unknown; use refuse or split"));
  }
  for (size_t i = 0; i < index_.parameters().size(); ++i) {
    const int module = homes_.unit[i];
    if (module < 0) continue;
    const DType dtype = index_.parameters()[i].dtype;
    auto& dtypes = dtypes_[module];
    bool known = false;
    for (const DType seen : dtypes) known |= seen == dtype;
    if (known) continue;
    if (!dtypes.empty() && mixed != "split") return MixedDTypes(index_.parameters()[i], module);
    dtypes.push_back(dtype);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PlanMaker::SplitName(int module, DType dtype) {
  if (names_.empty()) {
    for (const ModelIndex::Module& other : index_.modules()) names_.insert(other.fqn);
  }
  std::string name = absl::StrCat(index_.modules()[module].fqn, ":", DTypeName(dtype));
  if (!names_.contains(name)) return name;
  return InvalidField(name, absl::StrCat("is a module, and wrap.mixed_dtypes split would name a ",
                                         "unit so too; rename the module"));
}

absl::Status PlanMaker::AddUnits() {
  FoldedNotes notes("units were split by dtype.");
  for (const int module : PostOrder(index_, choice_.is_unit)) {
    auto& dtypes = dtypes_[module];
    // Moves nothing; but a dtype that is not set is a case for everybody who reads a plan.
    if (dtypes.empty()) dtypes.push_back(index_.parameters().front().dtype);
    first_unit_[module] = plan_.units_size();
    const std::string& fqn = index_.modules()[module].fqn;
    for (size_t k = dtypes.size(); k-- > 0;) {
      v1::Unit* unit = plan_.add_units();
      module_of_.push_back(module);
      unit->set_fqn(fqn);
      unit->set_class_name(index_.modules()[module].spec->class_name());
      unit->set_original_dtype(dtypes[k]);
      if (k == 0) continue;
      TESSERA_ASSIGN_OR_RETURN(*unit->mutable_fqn(), SplitName(module, dtypes[k]));
      unit->set_enclosing_unit(UnitIndex(module, k - 1));
      notes.Add(absl::StrCat("What is ", DTypeName(dtypes[k]), " in ", ShownUnit(fqn),
                             " is a unit of its own, \"", unit->fqn(),
                             "\" (wrap.mixed_dtypes split)."));
    }
  }
  for (int i = 0; i < plan_.units_size(); ++i) {
    const int parent = index_.modules()[module_of_[i]].parent;
    if (plan_.units(i).has_enclosing_unit() || parent < 0 || homes_.nearest[parent] < 0) continue;
    plan_.mutable_units(i)->set_enclosing_unit(first_unit_[homes_.nearest[parent]]);
  }
  std::vector<std::string> made;
  notes.MoveTo(&made);
  for (std::string& note : made) plan_.add_notes(std::move(note));
  return absl::OkStatus();
}

void PlanMaker::AssignParameters() {
  for (size_t i = 0; i < index_.parameters().size(); ++i) {
    const ModelIndex::Parameter& parameter = index_.parameters()[i];
    const int module = homes_.unit[i];
    if (module == UnitHomes::kIgnored) {
      plan_.add_ignored(parameter.fqn);
    } else if (module == UnitHomes::kOrphan) {
      plan_.add_orphans(parameter.fqn);
    } else {
      size_t k = 0;
      while (dtypes_[module][k] != parameter.dtype) ++k;
      AddParameter(parameter, plan_.mutable_units(UnitIndex(module, k)));
    }
  }
}

// Buffers are where their module is: they are on every rank, so that ties do not move them.
absl::Status PlanMaker::AddBuffers() {
  for (size_t i = 0; i < index_.modules().size(); ++i) {
    const ModelIndex::Module& module = index_.modules()[i];
    if (module.spec->buffers().empty() || choice_.ignored.modules[i] || homes_.nearest[i] < 0)
      continue;
    v1::Unit* unit = plan_.mutable_units(UnitIndex(homes_.nearest[i], 0));
    for (const v1::Buffer& buffer : module.spec->buffers()) {
      v1::UnitBuffer* added = unit->add_buffers();
      added->set_fqn(JoinFqn(module.fqn, buffer.name()));
      *added->mutable_shape() = buffer.shape();
      TESSERA_ASSIGN_OR_RETURN(const DType dtype, ParseDType(buffer.dtype()));
      added->set_original_dtype(dtype);
    }
  }
  return absl::OkStatus();
}

absl::Status PlanMaker::ApplySettings() {
  TESSERA_ASSIGN_OR_RETURN(UnitSettings settings, UnitSettings::Create(index_, job_, choice_));
  for (int i = 0; i < plan_.units_size(); ++i) {
    TESSERA_RETURN_IF_ERROR(settings.Apply(module_of_[i], plan_.mutable_units(i)));
  }
  return settings.CheckAllUsed();
}

absl::StatusOr<v1::Plan> PlanMaker::Make() {
  TESSERA_RETURN_IF_ERROR(FindDTypes());
  for (const std::string& note : homes_.notes) plan_.add_notes(note);
  TESSERA_RETURN_IF_ERROR(AddUnits());
  AssignParameters();
  TESSERA_RETURN_IF_ERROR(AddBuffers());
  TESSERA_RETURN_IF_ERROR(ApplySettings());
  AddUnitNotes(index_, choice_, homes_, &plan_);
  for (const std::string& note : choice_.notes) plan_.add_notes(note);
  plan_.set_plan_fingerprint(PlanFingerprint(plan_.units()));
  return std::move(plan_);
}

}  // namespace

absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::JobSpec& resolved) {
  TESSERA_ASSIGN_OR_RETURN(const ModelIndex index, ModelIndex::Create(model));
  TESSERA_ASSIGN_OR_RETURN(const WrapChoice choice,
                           ChooseUnits(index, resolved.wrap(), resolved.mixed_precision()));
  TESSERA_ASSIGN_OR_RETURN(const UnitHomes homes,
                           FindUnitHomes(index, choice, resolved.wrap().ties()));
  TESSERA_ASSIGN_OR_RETURN(v1::Plan plan, PlanMaker(index, resolved, choice, homes).Make());
  plan.set_model_name(model.name());
  return plan;
}

absl::StatusOr<v1::Plan> MakePlan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                  const v1::MixedPrecisionSpec& mixed_precision) {
  v1::JobSpec job;
  *job.mutable_wrap() = wrap;
  *job.mutable_mixed_precision() = mixed_precision;
  return MakePlan(model, job);
}

}  // namespace tessera
