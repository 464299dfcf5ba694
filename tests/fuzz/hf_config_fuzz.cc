// Any bytes as a config.json: refused on one line, or a model that can be walked.
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/model_spec.h"
#include "coordinator/model_import/hf_config.h"
#include "tests/fuzz/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT(google-build-using-namespace)
  const auto model = ModelFromHfConfig({reinterpret_cast<const char*>(data), size}, "config.json");
  CheckAnswer(model.status());
  if (!model.ok()) return 0;
  const auto index = ModelIndex::Create(*model);
  CheckThat(index.ok(), "a model that was read can be walked");
  for (const ModelIndex::Parameter& parameter : index->parameters()) {
    CheckThat(parameter.numel > 0, "each parameter has elements");
  }
  return 0;
}
