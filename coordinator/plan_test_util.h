// Small models and plans of them, for tests of the planner.
//
//   const v1::ModelSpec model = ModelOfRoot(Seq("", {Lin("0", 5, 5), Lin("1", 5, 5)}));
//   EXPECT_THAT(UnitFqns(Planned(model, Size(60))), ElementsAre(""));
#ifndef TESSERA_COORDINATOR_PLAN_TEST_UTIL_H_
#define TESSERA_COORDINATOR_PLAN_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "coordinator/planner.h"

namespace tessera {

inline v1::Module Mod(const std::string& name, const std::string& class_name,
                      const std::vector<v1::Module>& children = {}) {
  v1::Module module;
  module.set_name(name);
  module.set_class_name(class_name);
  module.add_base_classes("Module");
  for (const v1::Module& child : children) *module.add_children() = child;
  return module;
}

inline v1::Module Seq(const std::string& name, const std::vector<v1::Module>& children) {
  return Mod(name, "Sequential", children);
}

inline v1::Parameter* AddWeight(v1::Module* module, const std::string& name,
                                const std::vector<int64_t>& shape,
                                const std::string& dtype = "float32") {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype(dtype);
  return parameter;
}

inline void AddBuffer(v1::Module* module, const std::string& name, const std::string& dtype) {
  v1::Buffer* buffer = module->add_buffers();
  buffer->set_name(name);
  buffer->add_shape(4);
  buffer->set_dtype(dtype);
}

// in x out + out elements.
inline v1::Module Lin(const std::string& name, int64_t in, int64_t out,
                      const std::string& dtype = "float32") {
  v1::Module module = Mod(name, "Linear");
  AddWeight(&module, "weight", {out, in}, dtype);
  AddWeight(&module, "bias", {out}, dtype);
  return module;
}

// MultiheadAttention(width, 1): 3 width^2 + 3 width, and out_proj of width^2 + width.
inline v1::Module Mha(const std::string& name, int64_t width) {
  v1::Module proj = Lin("out_proj", width, width);
  proj.set_class_name("NonDynamicallyQuantizableLinear");
  proj.add_base_classes("Linear");
  v1::Module module = Mod(name, "MultiheadAttention", {proj});
  AddWeight(&module, "in_proj_weight", {3 * width, width});
  AddWeight(&module, "in_proj_bias", {3 * width});
  return module;
}

inline v1::Module Alias(const std::string& name, const std::string& target) {
  v1::Module module;
  module.set_name(name);
  module.set_same_as(target);
  return module;
}

inline v1::ModelSpec ModelOfRoot(v1::Module root) {
  v1::ModelSpec model;
  model.set_name("test");
  *model.mutable_root() = std::move(root);
  return model;
}

inline v1::JobSpec JobOf(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                         const v1::MixedPrecisionSpec& precision = {}) {
  v1::JobSpec job;
  job.set_name("test");
  *job.mutable_model()->mutable_spec() = model;
  *job.mutable_wrap() = wrap;
  *job.mutable_mixed_precision() = precision;
  return job;
}

// As a job file would have it planned.
inline absl::StatusOr<v1::Plan> TryPlan(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                                        const v1::MixedPrecisionSpec& precision = {}) {
  absl::StatusOr<v1::JobSpec> resolved = ResolveJobSpec(JobOf(model, wrap, precision));
  if (!resolved.ok()) return resolved.status();
  return MakePlan(model, *resolved);
}

inline v1::Plan Planned(const v1::ModelSpec& model, const v1::WrapSpec& wrap,
                        const v1::MixedPrecisionSpec& precision = {}) {
  absl::StatusOr<v1::Plan> plan = TryPlan(model, wrap, precision);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : v1::Plan();
}

inline v1::WrapSpec Named(const std::string& policy) {
  v1::WrapSpec wrap;
  wrap.set_policy(policy);
  return wrap;
}

inline v1::WrapSpec Size(int64_t min_params) {
  v1::WrapSpec wrap = Named("size");
  wrap.set_min_params(min_params);
  return wrap;
}

inline v1::WrapSpec Classes(const std::vector<std::string>& classes) {
  v1::WrapSpec wrap = Named("class");
  for (const std::string& name : classes) wrap.add_wrap_classes(name);
  return wrap;
}

inline v1::WrapSpec ByPolicy(v1::WrapSpec wrap) {
  wrap.set_root_unit("by_policy");
  return wrap;
}

inline std::vector<std::string> UnitFqns(const v1::Plan& plan) {
  std::vector<std::string> fqns;
  for (const v1::Unit& unit : plan.units()) fqns.push_back(unit.fqn());
  return fqns;
}

inline const v1::Unit& UnitNamed(const v1::Plan& plan, const std::string& fqn) {
  for (const v1::Unit& unit : plan.units()) {
    if (unit.fqn() == fqn) return unit;
  }
  ADD_FAILURE() << "no unit \"" << fqn << "\" in " << plan.ShortDebugString();
  return v1::Unit::default_instance();
}

inline std::string NotesOf(const v1::Plan& plan) {
  std::string notes;
  for (const std::string& note : plan.notes()) absl::StrAppend(&notes, note, "\n");
  return notes;
}

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLAN_TEST_UTIL_H_
