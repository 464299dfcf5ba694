#include "coordinator/activations.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/model_spec.h"
#include "coordinator/activation_classes.h"
#include "coordinator/gpt_activations.h"

namespace tessera {
namespace {

using Certainty = v1::Forecast::Certainty;

int64_t Clamped(double bytes) {
  return bytes >= static_cast<double>(kMaxActivationBytes) ? kMaxActivationBytes
                                                           : static_cast<int64_t>(bytes);
}

struct ClassSum {
  int64_t modules = 0;
  double bytes = 0;
  Certainty certainty = v1::Forecast::ESTIMATED;
  std::string note;
};

// Adds up a model's modules by class and by unit.
class Walk {
 public:
  Walk(const v1::ModelSpec& model, const v1::Plan& plan, const v1::ActivationSpec& spec)
      : plan_(plan), own_(plan.units_size(), 0), input_(plan.units_size(), -1) {
    pass_.sequences = spec.batch();
    pass_.sequence = spec.sequence();
    for (int i = 0; i < plan.units_size(); ++i) unit_of_[plan.units(i).fqn()] = i;
    Index(model.root(), "");
    Visit(model.root(), "", -1, 0);
  }

  Activations Result(bool recompute) && {
    Activations result;
    result.certainty = unknown_ ? v1::Forecast::UNKNOWN : v1::Forecast::ESTIMATED;
    result.kept.assign(own_.size(), 0);
    double kept = outside_;
    if (recompute) {
      kept += Recomputed(&result);
    } else {
      for (size_t i = 0; i < own_.size(); ++i) {
        result.kept[i] = Clamped(own_[i]);
        kept += own_[i];
      }
    }
    result.constant = Clamped(outside_);
    result.total = Clamped(kept + static_cast<double>(result.recomputed));
    AddClasses(recompute, &result);
    return result;
  }

 private:
  void Index(const v1::Module& module, const std::string& fqn) {
    module_of_[fqn] = &module;
    for (const v1::Module& child : module.children()) Index(child, JoinFqn(fqn, child.name()));
  }

  // A shared module computes again where it stands again, in the unit that holds it.
  void Visit(const v1::Module& module, const std::string& fqn, int unit, int aliases) {
    const auto found = unit_of_.find(fqn);
    if (found != unit_of_.end()) unit = found->second;
    if (!module.same_as().empty()) {
      const auto target = module_of_.find(module.same_as());
      // ValidateModelSpec lets no alias stand for a module around it; chains of others are finite,
      // but may be long.
      if (target == module_of_.end() || aliases == kMaxModuleDepth || ++visits_ > kMaxSharedUses) {
        return Miss(module, "is the same module over and over");
      }
      return Visit(*target->second, module.same_as(), unit, aliases + 1);
    }
    const ClassFormula* formula = FindFormula(module);
    if (formula == nullptr) {
      return Miss(module, "has no formula; its forward may keep anything");
    }
    if (formula->keeps == nullptr && module.parameters().empty()) {
      for (const v1::Module& child : module.children())
        Visit(child, JoinFqn(fqn, child.name()), unit, aliases);
      return;
    }
    if (formula->keeps == nullptr) return Miss(module, "has parameters of its own");
    pass_.element_bytes = ElementBytes(module, unit);
    const Footprint footprint = formula->keeps(module, pass_);
    if (!footprint.known) return Miss(module, "has not the parameters of the class that is known");
    pass_.width = footprint.width;
    Add(module.class_name(), unit, footprint.bytes, footprint.input_bytes);
    if (module.name() == "lm_head" && footprint.width > 0) {
      const double logits = static_cast<double>(pass_.rows()) *
                            static_cast<double>(footprint.width) *
                            static_cast<double>(pass_.element_bytes + 4);
      Add("logits", unit, logits, 0);
      classes_["logits"].note = "and their log-probabilities in float32";
    }
  }

  void Miss(const v1::Module& module, absl::string_view why) {
    ClassSum& sum = classes_[module.class_name()];
    ++sum.modules;
    sum.certainty = v1::Forecast::UNKNOWN;
    sum.note = std::string(why);
    unknown_ = true;
    pass_.width = 0;
  }

  void Add(const std::string& class_name, int unit, double bytes, double input_bytes) {
    ClassSum& sum = classes_[class_name];
    ++sum.modules;
    sum.bytes += bytes;
    if (unit < 0) {
      outside_ += bytes;
      return;
    }
    own_[unit] += bytes;
    if (input_[unit] < 0) input_[unit] = input_bytes;
  }

  int64_t ElementBytes(const v1::Module& module, int unit) const {
    if (unit >= 0) return DTypeBytes(plan_.units(unit).param_dtype());
    for (const v1::Parameter& parameter : module.parameters()) {
      const absl::StatusOr<DType> dtype = ParseDType(parameter.dtype());
      if (dtype.ok()) return DTypeBytes(*dtype);
    }
    return 4;
  }

  // Units directly below the root keep their input, and are whole again one at a time. Returns what
  // all units keep.
  double Recomputed(Activations* result) const {
    std::vector<double> bytes = own_;
    std::vector<double> input = input_;
    double kept = 0, largest = 0;
    for (int i = 0; i < plan_.units_size(); ++i) {
      const v1::Unit& unit = plan_.units(i);
      const int around = unit.has_enclosing_unit() ? unit.enclosing_unit() : -1;
      if (around >= 0 && plan_.units(around).has_enclosing_unit()) {
        bytes[around] += bytes[i];
        if (input[around] < 0) input[around] = input[i];
        continue;
      }
      const bool again = around >= 0 || !unit.fqn().empty();
      const double own = again ? std::max(input[i], 0.0) : bytes[i];
      if (again) largest = std::max(largest, bytes[i]);
      result->kept[i] = Clamped(own);
      kept += own;
    }
    result->recomputed = Clamped(largest);
    return kept;
  }

  void AddClasses(bool recompute, Activations* result) const {
    for (const auto& [name, sum] : classes_) {
      if (sum.bytes == 0 && sum.certainty != v1::Forecast::UNKNOWN) continue;
      v1::ActivationForecast forecast;
      forecast.set_class_name(name);
      forecast.set_modules(sum.modules);
      forecast.set_bytes(Clamped(sum.bytes));
      forecast.set_certainty(sum.certainty);
      forecast.set_note(sum.note);
      if (recompute && sum.note.empty()) forecast.set_note("before recomputation");
      result->classes.push_back(std::move(forecast));
    }
    std::stable_sort(result->classes.begin(), result->classes.end(),
                     [](const v1::ActivationForecast& a, const v1::ActivationForecast& b) {
                       return a.bytes() > b.bytes();
                     });
  }

  const v1::Plan& plan_;
  Pass pass_;
  std::unordered_map<std::string, int> unit_of_;
  std::unordered_map<std::string, const v1::Module*> module_of_;
  std::vector<double> own_;    // of each unit
  std::vector<double> input_;  // of its first module that keeps something; -1: none yet
  double outside_ = 0;         // of modules in no unit
  std::map<std::string, ClassSum> classes_;
  int64_t visits_ = 0;  // of aliases
  bool unknown_ = false;
};

// Batch and sequence as the builtin model's job has them, where they are not given.
v1::ActivationSpec PassOf(const v1::JobSpec& resolved, int world_size) {
  v1::ActivationSpec spec = resolved.activations();
  if (!resolved.model().has_builtin()) return spec;
  const int64_t ranks = std::max(1, world_size) * std::max<int64_t>(1, resolved.micro_batches());
  if (!spec.has_batch()) spec.set_batch((resolved.global_batch() + ranks - 1) / ranks);
  if (!spec.has_sequence()) spec.set_sequence(resolved.model().context());
  return spec;
}

Activations NoActivations(const v1::Plan& plan) {
  Activations none;
  none.certainty = v1::Forecast::EXACT;
  none.kept.assign(plan.units_size(), 0);
  return none;
}

Activations NotGiven(const v1::ActivationSpec& spec) {
  Activations unknown;
  v1::ActivationForecast* why = &unknown.classes.emplace_back();
  why->set_certainty(v1::Forecast::UNKNOWN);
  why->set_note(absl::StrCat(
      "give ",
      spec.batch() == 0 ? (spec.sequence() == 0 ? "activations.batch and activations.sequence"
                                                : "activations.batch")
                        : "activations.sequence",
      " for a forecast of activations"));
  return unknown;
}

}  // namespace

Activations ForecastActivations(const v1::ModelSpec& model, const v1::Plan& plan,
                                const v1::JobSpec& resolved, int world_size) {
  if (resolved.workload() == "replay") return NoActivations(plan);
  const v1::ActivationSpec spec = PassOf(resolved, world_size);
  if (spec.batch() <= 0 || spec.sequence() <= 0) return NotGiven(spec);
  const bool recompute = spec.recompute() == "unit";
  if (resolved.model().builtin() == "gpt" && resolved.workload() == "gpt") {
    return GptActivations(plan, resolved.model(), spec);
  }
  return Walk(model, plan, spec).Result(recompute);
}

}  // namespace tessera
