// What hf_config.cc knows of each family. Internal to model_import.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_HF_FAMILIES_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_HF_FAMILIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/model_import/hf_modules.h"
#include "coordinator/model_import/hf_reader.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

struct HfFamily {
  const char* model_type;
  // Classes that can be built; the first one where the config names none.
  std::vector<const char*> architectures;
  // Fills the empty `root` with `architecture`, which is one of the above. Fails, before anything
  // is added, with the reader's status.
  absl::Status (*build)(HfReader* config, absl::string_view architecture, const HfModules& make,
                        v1::Module* root);
};

HfFamily LlamaFamily();
HfFamily MistralFamily();
HfFamily MixtralFamily();
HfFamily Qwen2Family();
HfFamily Gpt2Family();
HfFamily BertFamily();
HfFamily T5Family();

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_HF_FAMILIES_H_
