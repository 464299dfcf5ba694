// How long a plan takes, for models of 1,000 to 1,000,000 modules under each policy: seconds, and
// the processor's nanoseconds a module, which should stay the same from line to line. A layer has ten modules, one
// of them tied to the first layer's.
//
//   bazel run -c opt //tests/measure:plan_measure -- [MODULES...]
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "coordinator/planner.h"

namespace tessera {
namespace {

void AddWeight(v1::Module* module, int64_t numel) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name("weight");
  parameter->add_shape(numel);
  parameter->set_dtype("float32");
}

v1::Module* AddChild(v1::Module* parent, const std::string& name, const std::string& class_name) {
  v1::Module* child = parent->add_children();
  child->set_name(name);
  child->set_class_name(class_name);
  child->add_base_classes("Module");
  return child;
}

v1::ModelSpec ModelOfModules(int64_t modules) {
  v1::ModelSpec model;
  model.set_name("layers");
  model.mutable_root()->set_class_name("Net");
  v1::Module* layers = AddChild(model.mutable_root(), "layers", "ModuleList");
  for (int64_t i = 0; i < modules / 10; ++i) {
    v1::Module* layer = AddChild(layers, absl::StrCat(i), "Layer");
    AddWeight(layer, 64);
    for (int k = 0; k < 9; ++k) {
      v1::Module* leaf = AddChild(layer, absl::StrCat("part", k), "Linear");
      AddWeight(leaf, 1024);
      if (k == 8 && i > 0) leaf->mutable_parameters(0)->set_tied_to("layers.0.part8.weight");
    }
  }
  return model;
}

int Measure(int64_t modules) {
  const v1::ModelSpec model = ModelOfModules(modules);
  for (const std::string policy : {"size", "class", "always", "none"}) {
    v1::JobSpec job;
    job.set_name("measure");
    job.mutable_model()->set_file("measured.json");  // given below
    job.mutable_wrap()->set_policy(policy);
    if (policy == "size") job.mutable_wrap()->set_min_params(9'000);
    if (policy == "class") job.mutable_wrap()->add_wrap_classes("Layer");
    const auto resolved = ResolveJobSpec(job);
    if (!resolved.ok()) {
      std::fprintf(stderr, "%s\n", resolved.status().ToString().c_str());
      return 1;
    }
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    const auto plan = MakePlan(model, *resolved);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    if (!plan.ok()) {
      std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
      return 1;
    }
    std::printf(
        "modules %lld policy %s units %d seconds %.4f cpu_seconds %.4f cpu_ns/module %.0f\n",
        static_cast<long long>(modules), policy.c_str(), plan->units_size(), took.count(), cpu,
        cpu * 1e9 / static_cast<double>(modules));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {1'000, 10'000, 100'000, 1'000'000};
  for (const int64_t modules : sizes) {
    if (const int failed = tessera::Measure(modules); failed != 0) return failed;
  }
  return 0;
}
