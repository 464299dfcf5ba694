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

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors_header.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

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
