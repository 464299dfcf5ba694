#include "common/builtin_models.h"

#include <cmath>
#include <initializer_list>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {
namespace {

constexpr double kStd = 0.02;

v1::Module* AddChild(v1::Module* parent, absl::string_view name, absl::string_view class_name) {
  v1::Module* child = parent->add_children();
  child->set_name(std::string(name));
  child->set_class_name(std::string(class_name));
  child->add_base_classes("Module");
  return child;
}

v1::Parameter* AddParameter(v1::Module* module, absl::string_view name,
                            std::initializer_list<int64_t> shape) {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(std::string(name));
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype("float32");
  return parameter;
}

void AddNormal(v1::Module* module, absl::string_view name, std::initializer_list<int64_t> shape,
               double std) {
  v1::Init* init = AddParameter(module, name, shape)->mutable_init();
  init->set_kind("normal");
  init->set_std(std);
}

void AddLayerNorm(v1::Module* parent, absl::string_view name, int64_t width) {
  v1::Module* norm = AddChild(parent, name, "LayerNorm");
  AddParameter(norm, "weight", {width})->mutable_init()->set_kind("ones");
  AddParameter(norm, "bias", {width})->mutable_init()->set_kind("zeros");
}

// GPT-2's linear layer, with the weight the other way round than PyTorch's Linear has it.
void AddConv1D(v1::Module* parent, absl::string_view name, int64_t in, int64_t out, double std) {
  v1::Module* layer = AddChild(parent, name, "Conv1D");
  AddNormal(layer, "weight", {in, out}, std);
  AddParameter(layer, "bias", {out})->mutable_init()->set_kind("zeros");
}

void AddBlock(v1::Module* parent, absl::string_view name, int64_t width, double residual_std) {
  v1::Module* block = AddChild(parent, name, "Block");
  AddLayerNorm(block, "ln_1", width);
  v1::Module* attention = AddChild(block, "attn", "Attention");
  AddConv1D(attention, "c_attn", width, 3 * width, kStd);
  AddConv1D(attention, "c_proj", width, width, residual_std);
  AddLayerNorm(block, "ln_2", width);
  v1::Module* mlp = AddChild(block, "mlp", "MLP");
  AddConv1D(mlp, "c_fc", width, 4 * width, kStd);
  AddConv1D(mlp, "c_proj", 4 * width, width, residual_std);
}

}  // namespace

v1::ModelSpec GptModelSpec(const GptSizes& sizes) {
  v1::ModelSpec spec;
  spec.set_name("gpt");
  v1::Module* root = spec.mutable_root();
  root->set_class_name("GPT");
  root->add_base_classes("Module");
  AddNormal(AddChild(root, "wte", "Embedding"), "weight", {sizes.vocab, sizes.width}, kStd);
  AddNormal(AddChild(root, "wpe", "Embedding"), "weight", {sizes.context, sizes.width}, kStd);
  v1::Module* blocks = AddChild(root, "h", "ModuleList");
  const double residual_std = kStd / std::sqrt(2.0 * static_cast<double>(sizes.layers));
  for (int64_t i = 0; i < sizes.layers; ++i) {
    AddBlock(blocks, absl::StrCat(i), sizes.width, residual_std);
  }
  AddLayerNorm(root, "ln_f", sizes.width);
  AddParameter(AddChild(root, "lm_head", "Linear"), "weight", {sizes.vocab, sizes.width})
      ->set_tied_to("wte.weight");
  return spec;
}

}  // namespace tessera
