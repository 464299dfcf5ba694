#include "coordinator/model_import/hf_modules.h"

namespace tessera {

void HfModules::SetClass(v1::Module* module, absl::string_view class_name, Names bases) const {
  module->set_class_name(std::string(class_name));
  for (const absl::string_view base : bases) module->add_base_classes(std::string(base));
  module->add_base_classes("Module");
}

v1::Module* HfModules::Module(v1::Module* parent, absl::string_view name,
                              absl::string_view class_name, Names bases) const {
  v1::Module* module = parent->add_children();
  module->set_name(std::string(name));
  SetClass(module, class_name, bases);
  return module;
}

void HfModules::Alias(v1::Module* parent, absl::string_view name, absl::string_view fqn) const {
  v1::Module* alias = parent->add_children();
  alias->set_name(std::string(name));
  alias->set_same_as(std::string(fqn));
}

v1::Module* HfModules::List(v1::Module* parent, absl::string_view name) const {
  return Module(parent, name, "ModuleList");
}

void HfModules::Dropout(v1::Module* parent, absl::string_view name) const {
  Module(parent, name, "Dropout", {"_DropoutNd"});
}

v1::Module* HfModules::Linear(v1::Module* parent, absl::string_view name, int64_t in, int64_t out,
                              bool bias) const {
  v1::Module* linear = Module(parent, name, "Linear");
  Parameter(linear, "weight", {out, in});
  if (bias) Parameter(linear, "bias", {out}, "zeros");
  return linear;
}

v1::Module* HfModules::Conv1D(v1::Module* parent, absl::string_view name, int64_t in,
                              int64_t out) const {
  v1::Module* layer = Module(parent, name, "Conv1D");
  Parameter(layer, "weight", {in, out});
  Parameter(layer, "bias", {out}, "zeros");
  return layer;
}

void HfModules::Embedding(v1::Module* parent, absl::string_view name, int64_t rows,
                          int64_t width) const {
  Parameter(Module(parent, name, "Embedding"), "weight", {rows, width});
}

void HfModules::LayerNorm(v1::Module* parent, absl::string_view name, int64_t width) const {
  v1::Module* norm = Module(parent, name, "LayerNorm");
  Parameter(norm, "weight", {width}, "ones");
  Parameter(norm, "bias", {width}, "zeros");
}

void HfModules::RmsNorm(v1::Module* parent, absl::string_view name, absl::string_view class_name,
                        int64_t width) const {
  Parameter(Module(parent, name, class_name), "weight", {width}, "ones");
}

v1::Parameter* HfModules::Parameter(v1::Module* module, absl::string_view name, Shape shape,
                                    absl::string_view init) const {
  v1::Parameter* parameter = module->add_parameters();
  parameter->set_name(std::string(name));
  for (const int64_t extent : shape) parameter->add_shape(extent);
  parameter->set_dtype(dtype_);
  if (!init.empty()) parameter->mutable_init()->set_kind(std::string(init));
  return parameter;
}

void HfModules::Buffer(v1::Module* module, absl::string_view name, Shape shape,
                       absl::string_view dtype) const {
  v1::Buffer* buffer = module->add_buffers();
  buffer->set_name(std::string(name));
  for (const int64_t extent : shape) buffer->add_shape(extent);
  buffer->set_dtype(std::string(dtype));
}

}  // namespace tessera
