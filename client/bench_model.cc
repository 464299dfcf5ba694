#include "client/bench_model.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kBlockModules = 10;
constexpr int64_t kWidth = 64;

v1::Module* AddModule(v1::Module* parent, const std::string& name, const std::string& class_name) {
  v1::Module* module = parent->add_children();
  module->set_name(name);
  module->set_class_name(class_name);
  return module;
}

void AddParameter(v1::Module* module, const std::string& name,
                  std::initializer_list<int64_t> shape) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(name);
  parameter->set_dtype("float32");
  for (const int64_t extent : shape) parameter->add_shape(extent);
}

void AddLinear(v1::Module* parent, const std::string& name, int64_t in, int64_t out) {
  v1::Module* linear = AddModule(parent, name, "Linear");
  AddParameter(linear, "weight", {out, in});
  AddParameter(linear, "bias", {out});
}

void AddBlock(v1::Module* root, const std::string& name) {
  v1::Module* block = AddModule(root, name, "Block");
  AddParameter(AddModule(block, "norm", "LayerNorm"), "weight", {kWidth});
  v1::Module* attention = AddModule(block, "attn", "Attention");
  for (const char* projection : {"q", "k", "v", "o"}) {
    AddLinear(attention, projection, kWidth, kWidth);
  }
  v1::Module* mlp = AddModule(block, "mlp", "Mlp");
  AddLinear(mlp, "up", kWidth, 4 * kWidth);
  AddLinear(mlp, "down", 4 * kWidth, kWidth);
}

}  // namespace

v1::ModelSpec BenchModel(int64_t modules) {
  v1::ModelSpec model;
  model.set_name("bench");
  v1::Module* root = model.mutable_root();
  root->set_class_name("Model");
  int64_t left = modules - 1;
  for (int64_t block = 0; left >= kBlockModules; left -= kBlockModules) {
    AddBlock(root, absl::StrCat(block++));
  }
  for (; left > 0; --left) AddLinear(root, absl::StrCat("head_", left), kWidth, kWidth);
  return model;
}

}  // namespace tessera
