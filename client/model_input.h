// Models that others describe, read from files: a Hugging Face config.json, or safetensors files,
// of which nothing but the headers is read.
//
//   TESSERA_ASSIGN_OR_RETURN(v1::ModelSpec model, ReadHfConfig("Llama-3.1-8B/"));
//   TESSERA_ASSIGN_OR_RETURN(v1::ModelSpec model, ReadSafetensors("Llama-3.1-8B/"));
//
// Every error is INVALID_ARGUMENT, one line that names the file and says what to do.
#ifndef TESSERA_CLIENT_MODEL_INPUT_H_
#define TESSERA_CLIENT_MODEL_INPUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// `path` is the file, or the folder with a config.json. INVALID_ARGUMENT: as ReadTextFile and
// ModelFromHfConfig.
absl::StatusOr<v1::ModelSpec> ReadHfConfig(const std::string& path);

// `path` is a safetensors file, an index (NAME.json) with its files beside it, or a folder: of
// which model.safetensors is taken, else model.safetensors.index.json, else its only *.safetensors.
// The model is named after the folder. INVALID_ARGUMENT: there is none of these, a file cannot be
// read, or as SafetensorsHeaderBytes, ParseSafetensorsIndex and ModelFromSafetensors.
absl::StatusOr<v1::ModelSpec> ReadSafetensors(const std::string& path);

// One model from any of the three, of which exactly one is given: a ModelSpec as JSON, a config, or
// safetensors.
struct ModelFiles {
  std::string spec = {};
  std::string hf_config = {};
  std::string safetensors = {};
};
absl::StatusOr<v1::ModelSpec> ReadModel(const ModelFiles& files);

}  // namespace tessera

#endif  // TESSERA_CLIENT_MODEL_INPUT_H_
