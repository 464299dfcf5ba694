#include "coordinator/draft.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"
#include "coordinator/draft_module.h"

namespace tessera {
namespace {

std::string Shown(absl::string_view fqn) {
  return fqn.empty() ? "the root" : absl::StrCat("\"", fqn, "\"");
}

bool Encloses(absl::string_view outer, absl::string_view inner) {
  return outer.empty() || outer == inner ||
         (absl::ConsumePrefix(&inner, outer) && absl::StartsWith(inner, "."));
}

absl::Status Disagree(std::string message) {
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        std::move(message), "; every rank has to build and wrap the same model")),
                    "RANKS_DISAGREE");
}

// What a call says beside which modules are units is the job's.
absl::Status CheckPolicy(const v1::WrapSpec& policy) {
  const std::pair<const char*, bool> of_the_job[] = {
      {"root_unit", policy.has_root_unit()},
      {"param_align_bytes", policy.has_param_align_bytes()},
      {"shard_align_bytes", policy.has_shard_align_bytes()},
      {"ties", policy.has_ties()},
      {"mixed_dtypes", policy.has_mixed_dtypes()},
  };
  for (const auto& [field, given] : of_the_job) {
    if (given) {
      return InvalidField(
          absl::StrCat("policy.", field),
          absl::StrCat("is the same for the whole model; set wrap.", field, " of the job"));
    }
  }
  if (!policy.ignore().empty()) {
    return InvalidField("policy.ignore", "is not available for a model that is built; drop it");
  }
  if (!policy.overrides().empty()) {
    return InvalidField("policy.overrides",
                        "is for job files; give the call overrides, or modules a wrap_config");
  }
  return absl::OkStatus();
}

// The same parameters at the same places, in shards of the same length.
bool CutAlike(const v1::UnitLayout& a, const v1::UnitLayout& b) {
  if (a.shard_numel() != b.shard_numel() || a.padded_numel() != b.padded_numel() ||
      a.parameters_size() != b.parameters_size()) {
    return false;
  }
  for (int i = 0; i < a.parameters_size(); ++i) {
    if (a.parameters(i).fqn() != b.parameters(i).fqn() ||
        a.parameters(i).offset() != b.parameters(i).offset()) {
      return false;
    }
  }
  return true;
}

v1::WrapSpec Annotated() {
  v1::WrapSpec wrap;
  wrap.set_policy("annotated");
  return wrap;
}

v1::AnnounceModuleResponse AnswerOf(const SealedUnits& units) {
  v1::AnnounceModuleResponse answer;
  for (const SealedUnit& sealed : units) {
    if (sealed.unit.parameters().empty()) {
      answer.add_empty_units(sealed.unit.fqn());
    } else {
      *answer.add_units() = sealed.unit;
      *answer.add_layouts() = sealed.layout;
    }
  }
  return answer;
}

}  // namespace

Draft::Draft(v1::JobSpec resolved, int world_size)
    : resolved_(std::move(resolved)), world_size_(world_size) {}

absl::StatusOr<v1::AnnounceModuleResponse> Draft::Announce(
    int rank, const v1::ModuleAnnouncement& announcement) {
  const std::string& fqn = announcement.fqn();
  const auto known = announced_.find({rank, fqn});
  const size_t announced = known == announced_.end() ? 0 : known->second;
  const auto found = records_.find(fqn);
  const size_t recorded = found == records_.end() ? 0 : found->second.size();
  // A repetition, of which the rank never got the answer.
  if (announced > 0 && Difference(found->second[announced - 1].announcement, announcement).empty())
    return found->second[announced - 1].answer;
  if (finished(rank)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", rank, " announces ", Shown(fqn),
                          " after the root, which completed the model; wrap the root last")),
                      "PLAN_SEALED");
  }
  if (announced < recorded) {
    const Record& first = found->second[announced];
    const std::string difference = Difference(first.announcement, announcement);
    if (!difference.empty()) {
      return Disagree(absl::StrCat("rank ", rank, " announces ", Shown(fqn),
                                   " otherwise than rank ", first.rank, ": ", difference));
    }
    announced_[{rank, fqn}] = announced + 1;
    if (fqn.empty()) finished_.insert(rank);
    return first.answer;
  }
  TESSERA_RETURN_IF_ERROR(CheckNew(rank, announcement));
  v1::Module annotated;
  TESSERA_ASSIGN_OR_RETURN(const SealedUnits units, Plan(announcement, &annotated));
  Record record{announcement, rank, AnswerOf(units)};
  Keep(announcement, units, annotated);
  records_[fqn].push_back(record);
  announced_[{rank, fqn}] = announced + 1;
  if (fqn.empty()) finished_.insert(rank);
  return std::move(record.answer);
}

absl::Status Draft::CheckNew(int rank, const v1::ModuleAnnouncement& announcement) const {
  const std::string& fqn = announcement.fqn();
  if (const auto root = records_.find(""); root != records_.end()) {
    return Disagree(absl::StrCat("rank ", rank, " announces ", Shown(fqn), ", which rank ",
                                 root->second[0].rank,
                                 " had not announced when it wrapped the root"));
  }
  const auto changes = changes_.find(rank);
  const size_t changed = changes == changes_.end() ? 0 : changes->second;
  if (announcement.dtype_changes() != static_cast<int>(changed)) {
    return InvalidField("announcement.dtype_changes",
                        absl::StrCat("is ", announcement.dtype_changes(), ", and rank ", rank,
                                     " has changed the model's dtype ", changed, " times"));
  }
  if (changed < dtypes_.size()) {
    return Disagree(absl::StrCat("rank ", rank, " announces ", Shown(fqn),
                                 " before it changes the model's dtype to ", dtypes_[changed],
                                 ", which another rank has changed without it"));
  }
  v1::WrapConfig defaults = announcement.defaults(), overrides = announcement.overrides();
  TESSERA_RETURN_IF_ERROR(CanonicaliseWrapConfig("defaults.", &defaults));
  TESSERA_RETURN_IF_ERROR(CanonicaliseWrapConfig("overrides.", &overrides));
  if (announcement.has_policy()) TESSERA_RETURN_IF_ERROR(CheckPolicy(announcement.policy()));
  TESSERA_RETURN_IF_ERROR(CheckPlaces(announcement));
  return CheckAnnounced(announcement, [this](const std::string& parameter) -> std::string {
    const auto unit = unit_of_parameter_.find(parameter);
    return unit == unit_of_parameter_.end() ? "(none)" : unit->second;
  });
}

absl::Status Draft::CheckPlaces(const v1::ModuleAnnouncement& announcement) const {
  const std::string& fqn = announcement.fqn();
  for (const auto& [sealed, module] : modules_) {
    if (Encloses(sealed, fqn)) {
      return absl::FailedPreconditionError(absl::StrCat(
          Shown(fqn), " is sealed already",
          sealed == fqn ? "" : absl::StrCat(", in ", Shown(sealed)), "; wrap a module once"));
    }
    const bool listed = std::find(announcement.sealed().begin(), announcement.sealed().end(),
                                  sealed) != announcement.sealed().end();
    if (Encloses(fqn, sealed) && !listed) {
      return InvalidField(
          sealed, absl::StrCat("is sealed, and ", Shown(fqn),
                               " does not hold it; add the wrapped module under this name"));
    }
  }
  for (const std::string& sealed : announcement.sealed()) {
    if (modules_.count(sealed) > 0) continue;
    return InvalidField(sealed, "was not sealed; announce it before what holds it");
  }
  return absl::OkStatus();
}

absl::StatusOr<SealedUnits> Draft::Plan(const v1::ModuleAnnouncement& announcement,
                                        v1::Module* annotated) const {
  const std::string& fqn = announcement.fqn();
  v1::ModuleAnnouncement open;
  open.set_fqn(fqn);
  *open.mutable_module() = WithoutStubs(announcement);
  *open.mutable_defaults() = announcement.defaults();
  *open.mutable_overrides() = announcement.overrides();
  if (announcement.has_policy()) *open.mutable_policy() = announcement.policy();
  const auto& full_precision = resolved_.mixed_precision().ignored_classes();
  std::set<std::string> chosen;
  if (announcement.has_policy()) {
    TESSERA_ASSIGN_OR_RETURN(const SealedUnits units,
                             PlanModule(resolved_, world_size_, fqn, open.module(),
                                        announcement.policy(), /*wraps_itself=*/false));
    for (const SealedUnit& unit : units) chosen.insert(unit.unit.fqn());
  } else {
    chosen.insert(fqn);
  }
  AnnotateUnits(open, chosen, full_precision, open.mutable_module());
  TESSERA_ASSIGN_OR_RETURN(
      const SealedUnits units,
      PlanModule(resolved_, world_size_, fqn, open.module(), Annotated(), chosen.count(fqn) > 0));
  v1::ModuleAnnouncement whole = announcement;
  AnnotateUnits(announcement, chosen, full_precision, whole.mutable_module());
  *annotated = WithSealed(whole, [this](const std::string& sealed) -> const v1::Module& {
    return modules_.at(sealed);
  });
  return units;
}

void Draft::Keep(const v1::ModuleAnnouncement& announcement, const SealedUnits& units,
                 const v1::Module& annotated) {
  std::set<std::string> fqns;
  for (const SealedUnit& sealed : units) {
    fqns.insert(sealed.unit.fqn());
    if (sealed.unit.parameters().empty()) continue;
    units_[sealed.unit.fqn()] = sealed;
    for (const v1::UnitParameter& parameter : sealed.unit.parameters()) {
      unit_of_parameter_[parameter.fqn()] = sealed.unit.fqn();
      for (const std::string& tied : parameter.tied_fqns())
        unit_of_parameter_[tied] = sealed.unit.fqn();
    }
  }
  unit_fqns_.insert(fqns.begin(), fqns.end());
  // The root completes the model also where it is no unit.
  if (announcement.fqn().empty()) fqns.insert("");
  std::map<std::string, v1::Module> outermost;
  v1::Module walked = annotated;
  VisitModules(&walked, announcement.fqn(), [&](const std::string& fqn, v1::Module* module) {
    if (fqns.count(fqn) == 0) return true;
    outermost[fqn] = *module;
    return false;
  });
  for (auto it = modules_.begin(); it != modules_.end();) {
    const bool inside = std::any_of(outermost.begin(), outermost.end(), [&](const auto& outer) {
      return Encloses(outer.first, it->first);
    });
    it = inside ? modules_.erase(it) : std::next(it);
  }
  modules_.merge(outermost);
}

absl::Status Draft::CheckChange(int rank, int number, const std::string& dtype) const {
  for (const auto& [fqn, records] : records_) {
    const auto known = announced_.find({rank, fqn});
    for (size_t i = known == announced_.end() ? 0 : known->second; i < records.size(); ++i) {
      if (records[i].announcement.dtype_changes() >= number) continue;
      return Disagree(absl::StrCat("rank ", rank, " changes the model's dtype to ", dtype,
                                   " before it announces ", Shown(fqn), ", which rank ",
                                   records[i].rank, " announced before such a change"));
    }
  }
  return absl::OkStatus();
}

absl::Status Draft::ChangeDType(int rank, int number, absl::string_view dtype_name) {
  TESSERA_ASSIGN_OR_RETURN(const DType parsed, ParseDType(dtype_name));
  const std::string dtype = DTypeName(parsed);
  if (!IsTrainable(parsed)) {
    return InvalidField("dtype", absl::StrCat(dtype,
                                              " cannot be trained in; give float32, "
                                              "bfloat16, float16 or float64"));
  }
  size_t& changed = changes_[rank];
  const size_t index = static_cast<size_t>(number) - 1;
  if (number < 1 || index > changed) {
    return InvalidField("number", absl::StrCat("is ", number, ", and rank ", rank, " has changed ",
                                               "the model's dtype ", changed, " times"));
  }
  if (index < dtypes_.size() && dtypes_[index] != dtype) {
    return Disagree(absl::StrCat("rank ", rank, " changes the model's dtype to ", dtype,
                                 ", and another rank to ", dtypes_[index]));
  }
  if (index < changed) return absl::OkStatus();  // a repetition
  if (finished(rank) || (index == dtypes_.size() && records_.count("") > 0)) {
    return WithReason(absl::FailedPreconditionError(absl::StrCat(
                          "rank ", rank, " changes the model's dtype to ", dtype,
                          " after the root was wrapped, which fixed the plan; change it before")),
                      "PLAN_SEALED");
  }
  TESSERA_RETURN_IF_ERROR(CheckChange(rank, number, dtype));
  if (index == dtypes_.size()) TESSERA_RETURN_IF_ERROR(ApplyDType(dtype));
  ++changed;
  return absl::OkStatus();
}

absl::Status Draft::ApplyDType(const std::string& dtype) {
  std::map<std::string, v1::Module> modules = modules_;
  std::map<std::string, SealedUnit> units;
  for (auto& [fqn, module] : modules) {
    SetDType(dtype, &module);
    TESSERA_ASSIGN_OR_RETURN(
        const SealedUnits planned,
        PlanModule(resolved_, world_size_, fqn, module, Annotated(), /*wraps_itself=*/true));
    for (const SealedUnit& sealed : planned) {
      if (sealed.unit.parameters().empty()) continue;
      const auto before = units_.find(sealed.unit.fqn());
      if (before == units_.end() || !CutAlike(sealed.layout, before->second.layout)) {
        return WithReason(
            absl::FailedPreconditionError(absl::StrCat(
                "unit ", Shown(sealed.unit.fqn()), " is sealed, and in ", dtype,
                " it would be cut otherwise; change the dtype before it is wrapped, give "
                "mixed_precision.param_dtype, or set wrap.shard_align_bytes and "
                "wrap.param_align_bytes to 0")),
            "UNIT_SEALED");
      }
      units[sealed.unit.fqn()] = sealed;
    }
  }
  modules_ = std::move(modules);
  units_ = std::move(units);
  dtypes_.push_back(dtype);
  return absl::OkStatus();
}

absl::StatusOr<v1::JobSpec> Draft::Seal() const {
  if (!complete()) return absl::FailedPreconditionError("not every rank has wrapped the root");
  v1::JobSpec sealed = resolved_;
  v1::WrapSpec wrap = Annotated();
  CopyJobsWrap(resolved_, &wrap);
  *sealed.mutable_wrap() = std::move(wrap);
  sealed.mutable_model()->clear_built();
  v1::ModelSpec* spec = sealed.mutable_model()->mutable_spec();
  spec->set_name(resolved_.name());
  *spec->mutable_root() = modules_.at("");
  return ResolveJobSpec(std::move(sealed));
}

absl::Status Draft::CheckSealed(const v1::Plan& plan, const v1::Layout& layout) const {
  size_t with_parameters = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    if (unit.parameters().empty()) continue;
    ++with_parameters;
    const auto sealed = units_.find(unit.fqn());
    if (sealed == units_.end() || !CutAlike(layout.units(i), sealed->second.layout) ||
        unit.param_dtype() != sealed->second.unit.param_dtype() ||
        unit.reduce_dtype() != sealed->second.unit.reduce_dtype()) {
      return absl::InternalError(absl::StrCat("unit ", Shown(unit.fqn()),
                                              " of the plan is not as it was sealed; this is a "
                                              "fault of the planner"));
    }
  }
  if (with_parameters == units_.size()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the plan has ", with_parameters,
                                          " units with parameters", " and ", units_.size(),
                                          " were sealed"));
}

}  // namespace tessera
