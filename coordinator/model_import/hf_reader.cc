#include "coordinator/model_import/hf_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/json_document.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// ACT2FN of transformers, less what has parameters of its own.
constexpr std::pair<const char*, const char*> kActivations[] = {
    {"gelu", "GELUActivation"},
    {"gelu_10", "ClippedGELUActivation"},
    {"gelu_accurate", "AccurateGELUActivation"},
    {"gelu_fast", "FastGELUActivation"},
    {"gelu_new", "NewGELUActivation"},
    {"gelu_python", "GELUActivation"},
    {"gelu_python_tanh", "GELUTanh"},
    {"gelu_pytorch_tanh", "GELUTanh"},
    {"laplace", "LaplaceActivation"},
    {"leaky_relu", "LeakyReLU"},
    {"linear", "LinearActivation"},
    {"mish", "MishActivation"},
    {"quick_gelu", "QuickGELUActivation"},
    {"relu", "ReLU"},
    {"relu2", "ReLUSquaredActivation"},
    {"relu6", "ReLU6"},
    {"sigmoid", "Sigmoid"},
    {"silu", "SiLUActivation"},
    {"swish", "SiLU"},
    {"tanh", "Tanh"},
};

}  // namespace

const Json* HfReader::Find(const char* key) const {
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

bool HfReader::Has(const char* key) const { return Find(key) != nullptr; }

void HfReader::Fault(const char* key, absl::string_view message) {
  if (status_.ok()) status_ = InvalidField(key, message);
}

int64_t HfReader::Size(const char* key, int64_t max) {
  if (Has(key)) return Size(key, max, 1);
  Fault(key, absl::StrCat("is missing; give an integer from 1 to ", max));
  return 1;
}

int64_t HfReader::Size(const char* key, int64_t max, int64_t absent) {
  const Json* value = Find(key);
  if (value == nullptr) return absent;
  // What is beyond uint64 is a float to the parser.
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(max)) return static_cast<int64_t>(number);
  }
  Fault(key, absl::StrCat("is ", ShowJson(*value), "; give an integer from 1 to ", max));
  return 1;
}

bool HfReader::Flag(const char* key, bool absent) {
  const Json* value = Find(key);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Fault(key, absl::StrCat("is ", ShowJson(*value), "; give true or false"));
  return absent;
}

std::string HfReader::Text(const char* key, absl::string_view absent) {
  const Json* value = Find(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr) Fault(key, absl::StrCat("is ", ShowJson(*value), "; give a string"));
  return std::string(absent);
}

double HfReader::Fraction(const char* key, double absent) {
  const Json* value = Find(key);
  if (value == nullptr) return absent;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (number > 0 && number <= 1) return number;
  Fault(key, absl::StrCat("is ", ShowJson(*value), "; give a number of more than 0 and at most 1"));
  return absent;
}

std::string HfReader::Activation(const char* key, absl::string_view absent) {
  return ActivationClass(key, Text(key, absent));
}

std::string HfReader::ActivationClass(const char* key, absl::string_view name) {
  std::string known;
  for (const auto& [activation, class_name] : kActivations) {
    if (name == activation) return class_name;
    absl::StrAppend(&known, known.empty() ? "" : ", ", activation);
  }
  Fault(key, absl::StrCat("\"", ShortAscii(name), "\" is no known activation; use one of ", known));
  return "";
}

int64_t HfReader::Labels() {
  const int64_t labels = Size("num_labels", kMaxHfSize, 0);
  const Json* names = Find("id2label");
  if (names == nullptr) return labels == 0 ? 2 : labels;
  if (!names->is_object() || names->empty()) {
    Fault("id2label", absl::StrCat("is ", names->is_object() ? "empty" : ShowJson(*names),
                                   "; give an object with a name for each label"));
    return 1;
  }
  const auto named = static_cast<int64_t>(names->size());
  if (labels != 0 && labels != named) {
    Fault("num_labels", absl::StrCat("is ", labels, ", but id2label names ", named,
                                     "; make them agree or drop one"));
  }
  return named;
}

int64_t HfReader::Divide(int64_t whole, const char* whole_key, int64_t parts,
                         const char* parts_key) {
  if (parts >= 1 && whole % parts == 0) return whole / parts;
  Fault(parts_key, absl::StrCat("is ", parts, ", which does not divide ", whole_key, " ", whole,
                                "; correct one of them"));
  return 1;
}

}  // namespace tessera
