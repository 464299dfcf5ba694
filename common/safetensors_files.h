// safetensors files as they lie on disk: their headers at once, their values by ranges.
//
//   TESSERA_ASSIGN_OR_RETURN(const SafetensorsFolder folder, ReadSafetensorsFolder("llama-8b"));
//   TESSERA_ASSIGN_OR_RETURN(const SafetensorsReader reader,
//                            SafetensorsReader::Open(folder.paths[0], folder.files[0].name));
//   TESSERA_RETURN_IF_ERROR(reader.Read(*reader.Find("a.weight"), /*offset=*/0, bytes, out));
//
// Thread-safety: immutable.
#ifndef TESSERA_COMMON_SAFETENSORS_FILES_H_
#define TESSERA_COMMON_SAFETENSORS_FILES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/safetensors_header.h"
#include "common/unique_fd.h"

namespace tessera {

// The files of a model.
struct SafetensorsFolder {
  std::string file;  // what was read: the one file, or the index
  std::optional<SafetensorsIndex> index;
  std::vector<std::string> paths;
  std::vector<SafetensorsFile> files;  // of each path
};

// `path` is a .safetensors file, an index of several (.json), or a folder with model.safetensors,
// with model.safetensors.index.json, or with one .safetensors file of any name. The headers are
// read and not looked into. INVALID_ARGUMENT, beginning with the path: it cannot be read or is none
// of these.
absl::StatusOr<SafetensorsFolder> ReadSafetensorsFolder(const std::string& path);

class SafetensorsReader {
 public:
  // `name` is what messages call the file. INVALID_ARGUMENT: it cannot be read, or is not a whole
  // safetensors file.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path, std::string name);

  const std::string& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // Null: there is none of that name.
  const SafetensorsTensor* Find(absl::string_view name) const;
  // `bytes` of a tensor of this file, from its byte `offset` on. INTERNAL: reading failed; names
  // the file and the tensor.
  absl::Status Read(const SafetensorsTensor& tensor, int64_t offset, int64_t bytes,
                    void* out) const;

 private:
  std::string path_;
  UniqueFd fd_;
  int64_t file_bytes_ = 0;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_SAFETENSORS_FILES_H_
