#include "coordinator/model_import/hf_config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/json_document.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_families.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Configs with a name for each of thousands of labels have about a megabyte.
constexpr int64_t kMaxConfigBytes = int64_t{4} << 20;
constexpr int kMaxConfigDepth = 16;

const std::vector<HfFamily>& Families() {
  static const auto* const families = new std::vector<HfFamily>{
      LlamaFamily(), MistralFamily(), MixtralFamily(), Qwen2Family(),
      Gpt2Family(),  BertFamily(),    T5Family(),
  };
  return *families;
}

absl::StatusOr<const HfFamily*> FamilyOf(HfReader* reader) {
  const std::string type = reader->Text("model_type", "");
  TESSERA_RETURN_IF_ERROR(reader->status());
  std::string known;
  for (const HfFamily& family : Families()) {
    if (type == family.model_type) return &family;
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.model_type);
  }
  return InvalidField(
      "model_type",
      absl::StrCat(type.empty() ? "is missing" : absl::StrCat("\"", ShortAscii(type), "\""),
                   type.empty() ? "" : " is unknown", "; use one of ", known,
                   ", or write a ModelSpec with client/export_model_spec.py"));
}

// The class to build.
absl::StatusOr<std::string> ArchitectureOf(const Json& config, const HfFamily& family) {
  const auto found = config.find("architectures");
  if (found == config.end() || found->is_null() || (found->is_array() && found->empty())) {
    return std::string(family.architectures.front());
  }
  const Json& value = found->is_array() ? found->front() : *found;
  std::string known;
  for (const char* architecture : family.architectures) {
    if (found->is_array() && value == architecture) return std::string(architecture);
    absl::StrAppend(&known, known.empty() ? "" : ", ", architecture);
  }
  return InvalidField("architectures", absl::StrCat(ShowJson(value), " is not one of ", known));
}

absl::StatusOr<std::string> DTypeOf(HfReader* reader) {
  const char* key = reader->Has("dtype") ? "dtype" : "torch_dtype";
  const std::string text = reader->Text(key, "float32");
  TESSERA_RETURN_IF_ERROR(reader->status());
  absl::string_view name = text;
  absl::ConsumePrefix(&name, "torch.");
  const absl::StatusOr<DType> dtype = ParseDType(name);
  if (dtype.ok() && IsTrainable(*dtype)) return DTypeName(*dtype);
  return InvalidField(key, absl::StrCat("\"", ShortAscii(text),
                                        "\" cannot be trained; use float64, float32, float16 or "
                                        "bfloat16"));
}

// Fails for what gives a model other tensors than its class has.
absl::Status CheckPlain(const Json& config) {
  const auto has = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && !found->empty();
  };
  if (has("quantization_config")) {
    return InvalidField("quantization_config",
                        "is there, and quantized tensors cannot be trained; use the config of the "
                        "model that was quantized");
  }
  if (has("pruned_heads")) {
    return InvalidField("pruned_heads",
                        "is there, and models with pruned heads are not read; write a ModelSpec "
                        "with client/export_model_spec.py");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ModelSpec> Build(const Json& config) {
  HfReader reader(config);
  TESSERA_ASSIGN_OR_RETURN(const HfFamily* family, FamilyOf(&reader));
  TESSERA_ASSIGN_OR_RETURN(const std::string architecture, ArchitectureOf(config, *family));
  TESSERA_ASSIGN_OR_RETURN(const std::string dtype, DTypeOf(&reader));
  TESSERA_RETURN_IF_ERROR(CheckPlain(config));
  v1::ModelSpec spec;
  spec.set_name(architecture);
  TESSERA_RETURN_IF_ERROR(
      family->build(&reader, architecture, HfModules(dtype), spec.mutable_root()));
  TESSERA_RETURN_IF_ERROR(ValidateModelSpec(spec));
  return spec;
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ModelFromHfConfig(absl::string_view json,
                                                absl::string_view source_name) {
  TESSERA_ASSIGN_OR_RETURN(const Json config,
                           ParseJsonObject(json, source_name, kMaxConfigBytes, kMaxConfigDepth));
  absl::StatusOr<v1::ModelSpec> spec = Build(config);
  if (!spec.ok()) return Annotate(spec.status(), source_name);
  return spec;
}

}  // namespace tessera
