// Any bytes as a model file: refused on one line, or a model that can be walked.
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/model_spec.h"
#include "tests/fuzz/fuzz_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT(google-build-using-namespace)
  const auto model = ParseModelSpec({reinterpret_cast<const char*>(data), size}, "model.json");
  CheckAnswer(model.status());
  if (!model.ok()) return 0;
  const auto index = ModelIndex::Create(*model);
  CheckThat(index.ok(), "a model that was read can be walked");
  int64_t numel = 0;
  for (const ModelIndex::Parameter& parameter : index->parameters()) numel += parameter.numel;
  CheckThat(numel > 0 && numel <= kMaxModelNumel, "a model's numel is within its bound");
  return 0;
}
