// How long a plan takes, for Llama-3.1-405B and for models of 1,000 to 1,000,000 modules under each
// policy: seconds, and the processor's nanoseconds a module, which should stay the same from line
// to line. A layer has ten modules, one of them tied to the first layer's.
//
//   bazel-bin/tests/measure/plan_measure [MODULES...]      0: Llama-3.1-405B
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
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

void AddLinear(v1::Module* parent, const std::string& name, int64_t in, int64_t out) {
  AddWeight(AddChild(parent, name, "Linear"), in * out);
}

// Llama-3.1-405B: 405,853,388,800 elements.
v1::ModelSpec Llama405B() {
  constexpr int64_t kWidth = 16'384, kInner = 53'248, kKeys = 1'024, kVocab = 128'256;
  v1::ModelSpec model;
  model.set_name("llama-3.1-405b");
  v1::Module* root = model.mutable_root();
  root->set_class_name("LlamaForCausalLM");
  v1::Module* inner = AddChild(root, "model", "LlamaModel");
  AddWeight(AddChild(inner, "embed_tokens", "Embedding"), kVocab * kWidth);
  v1::Module* layers = AddChild(inner, "layers", "ModuleList");
  for (int i = 0; i < 126; ++i) {
    v1::Module* layer = AddChild(layers, absl::StrCat(i), "LlamaDecoderLayer");
    v1::Module* attention = AddChild(layer, "self_attn", "LlamaAttention");
    AddLinear(attention, "q_proj", kWidth, kWidth);
    AddLinear(attention, "k_proj", kWidth, kKeys);
    AddLinear(attention, "v_proj", kWidth, kKeys);
    AddLinear(attention, "o_proj", kWidth, kWidth);
    v1::Module* mlp = AddChild(layer, "mlp", "LlamaMLP");
    AddLinear(mlp, "gate_proj", kWidth, kInner);
    AddLinear(mlp, "up_proj", kWidth, kInner);
    AddLinear(mlp, "down_proj", kInner, kWidth);
    AddWeight(AddChild(layer, "input_layernorm", "LlamaRMSNorm"), kWidth);
    AddWeight(AddChild(layer, "post_attention_layernorm", "LlamaRMSNorm"), kWidth);
  }
  AddWeight(AddChild(inner, "norm", "LlamaRMSNorm"), kWidth);
  AddLinear(root, "lm_head", kWidth, kVocab);
  return model;
}

int Measure(int64_t modules) {
  const v1::ModelSpec model = modules == 0 ? Llama405B() : ModelOfModules(modules);
  const auto index = ModelIndex::Create(model);
  if (!index.ok()) {
    std::fprintf(stderr, "%s\n", index.status().ToString().c_str());
    return 1;
  }
  const size_t count = index->modules().size();
  for (const std::string policy : {"size", "class", "always", "none"}) {
    v1::JobSpec job;
    job.set_name("measure");
    job.mutable_model()->set_file("measured.json");  // given below
    job.mutable_wrap()->set_policy(policy);
    if (policy == "size") job.mutable_wrap()->set_min_params(9'000);
    if (policy == "class")
      job.mutable_wrap()->add_wrap_classes(modules == 0 ? "LlamaDecoderLayer" : "Layer");
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
    int64_t numel = 0;
    for (const v1::Unit& unit : plan->units()) numel += unit.numel();
    std::printf(
        "%s numel %lld modules %lld policy %s units %d seconds %.5f cpu_seconds %.5f cpu_ns/module "
        "%.0f\n",
        model.name().c_str(), static_cast<long long>(numel), static_cast<long long>(count),
        policy.c_str(), plan->units_size(), took.count(), cpu,
        cpu * 1e9 / static_cast<double>(count));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  std::vector<int64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {0, 1'000, 10'000, 100'000, 1'000'000};
  for (const int64_t modules : sizes) {
    if (const int failed = tessera::Measure(modules); failed != 0) return failed;
  }
  return 0;
}
