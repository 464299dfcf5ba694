#include "common/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"
#include "common/json_document.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr absl::string_view kMetadata = "__metadata__";

struct DTypeCode {
  const char* code;
  DType dtype;
};

constexpr DTypeCode kDTypes[] = {
    {"F64", v1::FLOAT64},
    {"F32", v1::FLOAT32},
    {"F16", v1::FLOAT16},
    {"BF16", v1::BFLOAT16},
    {"F8_E4M3", v1::FLOAT8_E4M3FN},
    {"F8_E5M2", v1::FLOAT8_E5M2},
    {"I64", v1::INT64},
    {"I32", v1::INT32},
    {"I8", v1::INT8},
    {"U8", v1::UINT8},
    {"BOOL", v1::BOOL},
};

const char* CodeOf(DType dtype) {
  for (const DTypeCode& row : kDTypes) {
    if (row.dtype == dtype) return row.code;
  }
  return "";
}

std::string KnownDTypes() {
  return absl::StrJoin(kDTypes, ", ", [](std::string* out, const DTypeCode& row) {
    absl::StrAppend(out, row.code);
  });
}

// Takes the header as it is parsed, so that nothing is built but what belongs, and stops at the
// first thing that does not.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::string file_name, int64_t max_tensors)
      : file_name_(std::move(file_name)), max_tensors_(max_tensors) {}

  absl::Status status() const { return status_; }
  std::vector<SafetensorsTensor>& tensors() { return tensors_; }

  bool null() override { return Unfit("null"); }
  bool boolean(bool) override { return Unfit("a boolean"); }
  bool number_integer(number_integer_t value) override { return Number(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Number(ShortAscii(text));
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Unfit("binary data"); }
  bool start_object(std::size_t) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }
  bool key(string_t& name) override;
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::string message =
        absl::StrCat("has a header that is not JSON: ", JsonErrorText(error.what()));
    return place_ <= Place::kTop ? FileFault(message) : TensorFault(message);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kArray };

  bool FileFault(absl::string_view message) {
    status_ = InvalidField(file_name_, message);
    return false;
  }
  bool TensorFault(absl::string_view message) {
    status_ = InvalidField(TensorPlace(file_name_, key_), message);
    return false;
  }
  // A value of a kind that does not belong where it is.
  bool Unfit(absl::string_view what);
  bool Number(const std::string& text);
  bool FinishTensor();
  SafetensorsTensor& tensor() { return tensors_.back(); }

  const std::string file_name_;
  const int64_t max_tensors_;
  absl::Status status_;
  std::vector<SafetensorsTensor> tensors_;
  absl::flat_hash_set<std::string> names_;     // of tensors, and of __metadata__
  absl::flat_hash_set<std::string> metadata_;  // its keys
  Place place_ = Place::kStart;
  std::string key_;    // at the top
  std::string field_;  // within a tensor
  bool has_dtype_ = false;
  bool has_shape_ = false;
  std::vector<int64_t> offsets_;
  bool has_offsets_ = false;
};

bool HeaderReader::Unfit(absl::string_view what) {
  switch (place_) {
    case Place::kStart:
      return FileFault(absl::StrCat("has a header that is ", what, ", not an object"));
    case Place::kTop:
      return TensorFault(absl::StrCat("is ", what, ", not an object"));
    case Place::kMetadata:
      return TensorFault(absl::StrCat("has ", what, " as a value; metadata holds strings alone"));
    case Place::kTensor:
      return TensorFault(absl::StrCat("has ", what, " as its ", field_,
                                      field_ == "dtype" ? ", not a string" : ", not a list"));
    case Place::kArray:
      break;
  }
  return TensorFault(absl::StrCat("has ", what, " in its ", field_, ", which holds integers"));
}

bool HeaderReader::Number(const std::string& text) {
  if (place_ != Place::kArray) return Unfit("a number");
  return TensorFault(
      absl::StrCat("has ", text, " in its ", field_, "; give integers from 0 to 2^63 - 1"));
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (place_ != Place::kArray || value > std::numeric_limits<int64_t>::max()) {
    return Number(absl::StrCat(value));
  }
  std::vector<int64_t>& list = field_ == "shape" ? tensor().shape : offsets_;
  if (list.size() == kMaxSafetensorsRank) {
    return TensorFault(
        absl::StrCat("has more than ", kMaxSafetensorsRank, " numbers in its ", field_));
  }
  list.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::kMetadata) return true;
  if (place_ != Place::kTensor || field_ != "dtype") return Unfit("a string");
  for (const DTypeCode& row : kDTypes) {
    if (value == row.code) {
      tensor().dtype = row.dtype;
      return true;
    }
  }
  return TensorFault(absl::StrCat("has the dtype \"", ShortAscii(value),
                                  "\"; those that can be held are ", KnownDTypes()));
}

bool HeaderReader::start_object(std::size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
    return true;
  }
  if (place_ != Place::kTop) return Unfit("an object");
  if (key_ == kMetadata) {
    place_ = Place::kMetadata;
    return true;
  }
  if (static_cast<int64_t>(tensors_.size()) == max_tensors_) {
    return FileFault(
        absl::StrCat("makes the model one of more than ", kMaxSafetensorsTensors, " tensors"));
  }
  place_ = Place::kTensor;
  has_dtype_ = has_shape_ = has_offsets_ = false;
  offsets_.clear();
  tensors_.push_back({.name = key_, .shape = {}});
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTensor && !FinishTensor()) return false;
  place_ = Place::kTop;  // after the last one nothing but the end of the text follows
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (place_ != Place::kTensor || field_ == "dtype") return Unfit("a list");
  place_ = Place::kArray;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (place_ == Place::kTop) {
    key_ = name;
    return names_.insert(name).second || TensorFault("is there twice");
  }
  if (place_ == Place::kMetadata) {
    if (metadata_.insert(name).second) return true;
    return TensorFault(absl::StrCat("has the key \"", ShortAscii(name), "\" twice"));
  }
  field_ = name;
  bool* const has = name == "dtype"          ? &has_dtype_
                    : name == "shape"        ? &has_shape_
                    : name == "data_offsets" ? &has_offsets_
                                             : nullptr;
  if (has == nullptr) {
    return TensorFault(absl::StrCat("has the unknown key \"", ShortAscii(name), "\""));
  }
  if (*has) return TensorFault(absl::StrCat("has the key ", name, " twice"));
  *has = true;
  return true;
}

// The tensor's data is where it says, and of the bytes that dtype and shape ask for.
bool HeaderReader::FinishTensor() {
  for (const auto& [has, field] : {std::pair(has_dtype_, "dtype"), std::pair(has_shape_, "shape"),
                                   std::pair(has_offsets_, "data_offsets")}) {
    if (!has) return TensorFault(absl::StrCat("has no ", field));
  }
  if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
    return TensorFault(absl::StrCat("has the data_offsets [", absl::StrJoin(offsets_, ","),
                                    "]; give a start and an end that is not before it"));
  }
  tensor().begin = offsets_[0];
  tensor().end = offsets_[1];
  int64_t bytes = DTypeBytes(tensor().dtype);
  bool overflows = false;
  for (const int64_t extent : tensor().shape) {
    overflows = overflows || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  const std::string shape = absl::StrCat("has the shape [", absl::StrJoin(tensor().shape, ","),
                                         "] of ", DTypeName(tensor().dtype));
  if (overflows) return TensorFault(absl::StrCat(shape, ", whose bytes overflow int64"));
  if (bytes == tensor().end - tensor().begin) return true;
  return TensorFault(absl::StrCat(shape, ", which is ", bytes, " bytes, and its data_offsets are ",
                                  tensor().end - tensor().begin, " bytes apart"));
}

}  // namespace

std::string TensorPlace(absl::string_view file_name, absl::string_view tensor) {
  return absl::StrCat(file_name, ", tensor ", ShortAscii(tensor));
}

absl::StatusOr<std::vector<SafetensorsTensor>> ReadSafetensorsHeader(const SafetensorsFile& file,
                                                                     int64_t max_tensors) {
  if (file.header.empty() || file.header.front() != '{') {
    return InvalidField(file.name,
                        "has a header that does not begin with {; it is no safetensors "
                        "file");
  }
  HeaderReader reader(file.name, max_tensors);
  if (!nlohmann::json::sax_parse(file.header.begin(), file.header.end(), &reader)) {
    return reader.status();
  }
  return std::move(reader.tensors());
}

absl::Status CheckSafetensorsData(const SafetensorsFile& file,
                                  std::vector<SafetensorsTensor> tensors) {
  const int64_t header = kSafetensorsLengthBytes + static_cast<int64_t>(file.header.size());
  if (file.file_bytes < header) return InvalidField(file.name, "ends within its header");
  const int64_t data = file.file_bytes - header;
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t filled = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto fault = [&](absl::string_view message) {
      return InvalidField(TensorPlace(file.name, tensor.name), message);
    };
    if (tensor.end > data) {
      return fault(absl::StrCat("ends at byte ", tensor.end, " of the data, which has ", data));
    }
    if (tensor.begin != filled) {
      return fault(absl::StrCat("starts at byte ", tensor.begin,
                                " of the data, but what is before ", "it ends at ", filled,
                                tensor.begin < filled ? ": they overlap" : ": there is a hole"));
    }
    filled = tensor.end;
  }
  if (filled == data) return absl::OkStatus();
  return InvalidField(file.name, absl::StrCat("has ", data, " bytes of data, of which the tensors ",
                                              "take ", filled, "; it is cut or damaged"));
}

absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view file_name, absl::string_view start,
                                               int64_t file_bytes) {
  if (static_cast<int64_t>(start.size()) < kSafetensorsLengthBytes) {
    return InvalidField(
        file_name, absl::StrCat("has ", start.size(), " bytes, too few for a safetensors file"));
  }
  uint64_t bytes = 0;
  for (int64_t i = kSafetensorsLengthBytes - 1; i >= 0; --i) {
    bytes = bytes << 8 | static_cast<unsigned char>(start[static_cast<size_t>(i)]);
  }
  const auto fault = [&](absl::string_view message) {
    return InvalidField(file_name, absl::StrCat("says that its header has ", bytes, " bytes",
                                                message, "; it is damaged or no safetensors file"));
  };
  if (bytes == 0) return fault("");
  if (bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return fault(absl::StrCat(", and the format allows ", kMaxSafetensorsHeaderBytes));
  }
  const auto header = static_cast<int64_t>(bytes);
  if (file_bytes < kSafetensorsLengthBytes + header) {
    return fault(absl::StrCat(", and the file has ", file_bytes));
  }
  return header;
}

std::string SafetensorsStart(absl::Span<const SafetensorsTensor> tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    int64_t bytes = DTypeBytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    header[tensor.name] = {{"dtype", CodeOf(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string start(kSafetensorsLengthBytes, '\0');
  for (int64_t i = 0; i < kSafetensorsLengthBytes; ++i)
    start[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
  return start + text;
}

}  // namespace tessera
