// One safetensors header as a list of tensors. Internal to model_import.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_HEADER_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "coordinator/model_import/safetensors.h"

namespace tessera {

struct SafetensorsTensor {
  std::string name;
  DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;  // at most kMaxSafetensorsRank extents of 0 or more
  int64_t begin = 0;           // bytes, from the end of the header
  int64_t end = 0;
};

inline constexpr size_t kMaxSafetensorsRank = 32;

// In the header's order. INVALID_ARGUMENT, beginning with the file's name: not in the format, or
// more than `max_tensors`.
absl::StatusOr<std::vector<SafetensorsTensor>> ReadSafetensorsHeader(const SafetensorsFile& file,
                                                                     int64_t max_tensors);

// INVALID_ARGUMENT: the tensors' data does not fill the file from the header's end to its own, one
// after the other without overlaps or holes.
absl::Status CheckSafetensorsData(const SafetensorsFile& file,
                                  std::vector<SafetensorsTensor> tensors);

// "model.safetensors, tensor a.b": what a message is about, short.
std::string TensorPlace(absl::string_view file_name, absl::string_view tensor);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_SAFETENSORS_HEADER_H_
