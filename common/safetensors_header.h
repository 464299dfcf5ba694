// Headers of safetensors files, read and written: the bytes of a tensor are never looked at here.
//
//   SafetensorsFile file{.name = "model.safetensors", .header = "", .file_bytes = size};
//   TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
//                            SafetensorsHeaderBytes(file.name, first_8_bytes, file.file_bytes));
//   file.header = Read(bytes);  // that follow
//   TESSERA_ASSIGN_OR_RETURN(const std::vector<SafetensorsTensor> tensors,
//                            ReadSafetensorsHeader(file, kMaxSafetensorsTensors));
//
// Headers come from strangers: every text gives a list or an error that names file and tensor, in
// time and memory proportional to the text. Thread-safety: pure functions of values.
#ifndef TESSERA_COMMON_SAFETENSORS_HEADER_H_
#define TESSERA_COMMON_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/dtype.h"

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

// INVALID_ARGUMENT: the index and the headers do not name the same tensors, each in the same file.
// `tensors`: of each of `files`.
absl::Status CheckSafetensorsIndex(const SafetensorsIndex& index,
                                   absl::Span<const SafetensorsFile> files,
                                   const std::vector<std::vector<SafetensorsTensor>>& tensors);

// The first bytes of a file whose data are `tensors`, in that order, one after the other: length
// and header, padded to a multiple of 8. begin and end are made here; `metadata` is kept as it is.
std::string SafetensorsStart(absl::Span<const SafetensorsTensor> tensors,
                             const std::map<std::string, std::string>& metadata);

// "model.safetensors, tensor a.b": what a message is about, short.
std::string TensorPlace(absl::string_view file_name, absl::string_view tensor);

}  // namespace tessera

#endif  // TESSERA_COMMON_SAFETENSORS_HEADER_H_
