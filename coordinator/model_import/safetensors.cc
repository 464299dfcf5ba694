#include "coordinator/model_import/safetensors.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "common/json_document.h"
#include "common/model_spec.h"
#include "common/safetensors_header.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

bool IsNumber(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Numbers first and as numbers, then everything else in byte order.
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return Key(a) < Key(b); }

  static std::tuple<bool, size_t, absl::string_view, absl::string_view> Key(
      absl::string_view text) {
    if (!IsNumber(text)) return {true, 0, text, text};
    absl::string_view digits = text;
    while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
    return {false, digits.size(), digits, text};
  }
};

// A name in the tree: a module, or a tensor.
struct Node {
  const SafetensorsFile* file = nullptr;  // of the tensor, or of the first one below
  const SafetensorsTensor* tensor = nullptr;
  std::map<std::string, std::unique_ptr<Node>, NaturalLess> children;
};

absl::Status AddTensor(const SafetensorsFile& file, const SafetensorsTensor& tensor, Node* root) {
  const auto fault = [&](absl::string_view message) {
    return InvalidField(TensorPlace(file.name, tensor.name), message);
  };
  // Counted before anything is made of them. The last one is no module, but the root is.
  if (std::count(tensor.name.begin(), tensor.name.end(), '.') >= kMaxModuleDepth) {
    return fault(absl::StrCat("is nested more than ", kMaxModuleDepth, " modules deep"));
  }
  Node* node = root;
  for (const absl::string_view segment : absl::StrSplit(tensor.name, '.')) {
    if (segment.empty()) return fault("has an empty part in its name; names are like a.b.weight");
    if (node->tensor != nullptr) {
      return fault(absl::StrCat("is below the tensor ", ShortAscii(node->tensor->name), " of ",
                                node->file->name, "; a name is a tensor's or a module's"));
    }
    std::unique_ptr<Node>& child = node->children[std::string(segment)];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->file = &file;
    }
    node = child.get();
  }
  if (node->tensor != nullptr) {
    return fault(absl::StrCat("is also in ", node->file->name, "; drop one of them"));
  }
  if (!node->children.empty()) {
    return fault(absl::StrCat("has its name in common with a module of ", node->file->name,
                              "; a name is a tensor's or a module's"));
  }
  node->tensor = &tensor;
  node->file = &file;
  return absl::OkStatus();
}

// What a ModelSpec cannot hold as a parameter, said with the file's name.
absl::Status CheckParameter(const Node& node) {
  const auto fault = [&](absl::string_view message) {
    return InvalidField(TensorPlace(node.file->name, node.tensor->name), message);
  };
  if (!IsTrainable(node.tensor->dtype)) {
    return fault(absl::StrCat("has the dtype ", DTypeName(node.tensor->dtype),
                              ", which cannot be trained; give the files of the model in float64, "
                              "float32, float16 or bfloat16"));
  }
  const std::vector<int64_t>& shape = node.tensor->shape;
  if (shape.empty()) return fault("is a scalar, which cannot be sharded; save it with shape [1]");
  if (std::find(shape.begin(), shape.end(), 0) == shape.end()) return absl::OkStatus();
  return fault("has no elements; leave it out of the file");
}

bool IsFloat(DType dtype) {
  return IsTrainable(dtype) || dtype == v1::FLOAT8_E4M3FN || dtype == v1::FLOAT8_E5M2;
}

template <typename Tensor>
void SetTensor(const std::string& name, const SafetensorsTensor& from, Tensor* tensor) {
  tensor->set_name(name);
  for (const int64_t extent : from.shape) tensor->add_shape(extent);
  tensor->set_dtype(DTypeName(from.dtype));
}

// Fills `module`, whose name is set, with what is below `node`. As deep as names have parts.
absl::Status FillModule(const Node& node, v1::Module* module) {
  bool list = !node.children.empty();
  for (const auto& [name, child] : node.children) {
    list = list && child->tensor == nullptr && IsNumber(name);
    if (child->tensor == nullptr) {
      v1::Module* below = module->add_children();
      below->set_name(name);
      TESSERA_RETURN_IF_ERROR(FillModule(*child, below));
    } else if (IsFloat(child->tensor->dtype)) {
      TESSERA_RETURN_IF_ERROR(CheckParameter(*child));
      SetTensor(name, *child->tensor, module->add_parameters());
    } else {
      SetTensor(name, *child->tensor, module->add_buffers());
    }
  }
  module->set_class_name(list ? "ModuleList" : "Module");
  if (list) module->add_base_classes("Module");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ModelFromSafetensors(absl::Span<const SafetensorsFile> files,
                                                   const SafetensorsIndex* index,
                                                   absl::string_view model_name) {
  std::vector<std::vector<SafetensorsTensor>> tensors;
  int64_t left = kMaxSafetensorsTensors;
  for (const SafetensorsFile& file : files) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<SafetensorsTensor> of_file,
                             ReadSafetensorsHeader(file, left));
    TESSERA_RETURN_IF_ERROR(CheckSafetensorsData(file, of_file));
    left -= static_cast<int64_t>(of_file.size());
    tensors.push_back(std::move(of_file));
  }
  if (index != nullptr) TESSERA_RETURN_IF_ERROR(CheckSafetensorsIndex(*index, files, tensors));
  Node root;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsTensor& tensor : tensors[i]) {
      TESSERA_RETURN_IF_ERROR(AddTensor(files[i], tensor, &root));
    }
  }
  v1::ModelSpec spec;
  spec.set_name(std::string(model_name));
  TESSERA_RETURN_IF_ERROR(FillModule(root, spec.mutable_root()));
  // Also where all of its children are numbers, as a Sequential's are.
  spec.mutable_root()->set_class_name("Module");
  spec.mutable_root()->clear_base_classes();
  TESSERA_RETURN_IF_ERROR(Annotate(ValidateModelSpec(spec), index != nullptr   ? index->name
                                                            : files.size() > 0 ? files[0].name
                                                                               : "no files"));
  return spec;
}

}  // namespace tessera
