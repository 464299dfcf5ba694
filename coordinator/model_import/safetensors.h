// The headers of safetensors files as a ModelSpec. Values are never looked at, so models of any
// size are read at once.
//
//   SafetensorsFile file{.name = "model.safetensors", .header = "", .file_bytes = size};
//   TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
//                            SafetensorsHeaderBytes(file.name, first_8_bytes, file.file_bytes));
//   file.header = Read(bytes);  // that follow
//   TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model,
//                            ModelFromSafetensors({file}, /*index=*/nullptr, "my-model"));
//
// A file knows tensors by name, dtype and shape; the rest is made of the names:
//   - `a.b.weight` is the parameter `weight` of the module `b` of the module `a`. A module that has
//     no tensors of its own and only numbers as children has the class ModuleList, every other one
//     the class Module: give units by size, pattern or FQN, or import a config.json for classes;
//   - siblings are in the order of their names, numbers as numbers, whatever the file's order;
//   - floating-point tensors are parameters, integers and booleans buffers. Ties are not in a file:
//     the tensor stands where it was saved.
//
// Headers come from strangers: every text gives a model or an error that names file and tensor, in
// time and memory proportional to the text and within the limits below. Thread-safety: pure
// functions of values.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// A file begins with the header's length, 8 bytes in little-endian order.
inline constexpr int64_t kSafetensorsLengthBytes = 8;
// The format's own limit of a header.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// Of a model, in all of its files. The largest published ones have some 100,000.
inline constexpr int64_t kMaxSafetensorsTensors = 500'000;

struct SafetensorsFile {
  std::string name;        // as the index calls it; for messages
  std::string header;      // JSON, without the length before it
  int64_t file_bytes = 0;  // of the whole file
};

// Which file each tensor is in: model.safetensors.index.json.
struct SafetensorsIndex {
  std::string name;  // for messages
  std::map<std::string, std::string> weight_map;

  // Each file once, in byte order.
  std::vector<std::string> Files() const;
};

// Bytes of the header that follows the first 8. `start` is what the file starts with, 8 bytes or,
// in a shorter file, all. INVALID_ARGUMENT: the header is empty, over the limit or not all in the
// file.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view file_name, absl::string_view start,
                                               int64_t file_bytes);

// INVALID_ARGUMENT: not JSON with a weight_map of names to plain names of .safetensors files beside
// the index.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json,
                                                       absl::string_view source_name);

// A valid ModelSpec of all tensors in `files`. With an index, these are the files that it lists,
// and their tensors are those of its weight_map; without one there is one file. INVALID_ARGUMENT: a
// header that is not in the format (not JSON, keys or values that do not belong, data that
// overlaps, has holes or is not all of the file, a shape that does not fit the data), a dtype that
// a ModelSpec cannot hold or train, a scalar or empty tensor, a name that is no FQN, that is also a
// module's, or that is there twice.
absl::StatusOr<v1::ModelSpec> ModelFromSafetensors(absl::Span<const SafetensorsFile> files,
                                                   const SafetensorsIndex* index,
                                                   absl::string_view model_name);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_H_
