// Any bytes as the start of a safetensors file, and as an index: refused on one line, or a model
// whose tensors lie in the file. The bytes up to the first '{' are the length and the file's: what
// is cut from a real file, or a lie.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "common/model_spec.h"
#include "coordinator/model_import/safetensors.h"
#include "tests/fuzz/fuzz_check.h"

namespace tessera {
namespace {

int64_t BytesOf(const v1::Module& module) {
  int64_t bytes = 0;
  const auto add = [&](const auto& tensor) {
    int64_t numel = 1;
    for (const int64_t extent : tensor.shape()) numel *= extent;
    bytes += numel * DTypeBytes(*ParseDType(tensor.dtype()));
  };
  for (const v1::Parameter& parameter : module.parameters()) add(parameter);
  for (const v1::Buffer& buffer : module.buffers()) add(buffer);
  for (const v1::Module& child : module.children()) bytes += BytesOf(child);
  return bytes;
}

// A header without its length, in a file of `file_bytes`.
void ReadHeader(absl::string_view header, int64_t file_bytes) {
  const SafetensorsFile file{
      .name = "m.safetensors", .header = std::string(header), .file_bytes = file_bytes};
  const auto model = ModelFromSafetensors({file}, /*index=*/nullptr, "m");
  CheckAnswer(model.status());
  if (!model.ok()) return;
  CheckThat(ModelIndex::Create(*model).ok(), "a model that was read can be walked");
  CheckThat(
      BytesOf(model->root()) + kSafetensorsLengthBytes + static_cast<int64_t>(header.size()) ==
          file_bytes,
      "the tensors fill the file");
}

void ReadIndex(absl::string_view text) {
  const auto index = ParseSafetensorsIndex(text, "m.safetensors.index.json");
  CheckAnswer(index.status());
  if (!index.ok()) return;
  CheckThat(!index->Files().empty(), "an index has files");
  CheckAnswer(ModelFromSafetensors({}, &*index, "m").status());
}

void ReadBytes(absl::string_view bytes) {
  const absl::string_view start = bytes.substr(0, 8);
  int64_t file_bytes = 0;
  std::memcpy(&file_bytes, start.data(), start.size());
  // As a whole file, then with the first bytes as the length of a file that fits its header.
  const auto said = SafetensorsHeaderBytes("m", start, static_cast<int64_t>(bytes.size()));
  CheckAnswer(said.status());
  if (said.ok()) {
    ReadHeader(bytes.substr(8, static_cast<size_t>(*said)), static_cast<int64_t>(bytes.size()));
  }
  CheckAnswer(SafetensorsHeaderBytes("m", start, file_bytes).status());
  if (bytes.size() >= 8) ReadHeader(bytes.substr(8), file_bytes);
  ReadIndex(bytes);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::ReadBytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
