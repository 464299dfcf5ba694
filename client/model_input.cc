#include "client/model_input.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "client/job_input.h"
#include "common/model_spec.h"
#include "common/safetensors_files.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_config.h"
#include "coordinator/model_import/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// "llama-8b" for llama-8b/model.safetensors and for llama-8b/.
std::string NameOf(const fs::path& file) {
  std::error_code error;
  const fs::path whole = fs::absolute(file, error).lexically_normal();
  return error ? file.stem().string() : whole.parent_path().filename().string();
}

}  // namespace

absl::StatusOr<v1::ModelSpec> ReadHfConfig(const std::string& path) {
  std::error_code error;
  const std::string file =
      fs::is_directory(path, error) ? (fs::path(path) / "config.json").string() : path;
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  return ModelFromHfConfig(text, file);
}

absl::StatusOr<v1::ModelSpec> ReadSafetensors(const std::string& path) {
  TESSERA_ASSIGN_OR_RETURN(const SafetensorsFolder folder, ReadSafetensorsFolder(path));
  return ModelFromSafetensors(folder.files, folder.index.has_value() ? &*folder.index : nullptr,
                              NameOf(folder.file));
}

absl::StatusOr<v1::ModelSpec> ReadModel(const ModelFiles& files) {
  if (!files.hf_config.empty()) return ReadHfConfig(files.hf_config);
  if (!files.safetensors.empty()) return ReadSafetensors(files.safetensors);
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(files.spec));
  return ParseModelSpec(text, files.spec);
}

}  // namespace tessera
