#include "common/dtype.h"

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {
namespace {

struct Names {
  DType dtype;
  int64_t bytes;
  std::array<const char*, 4> names;  // canonical first
};

constexpr Names kNames[] = {
    {v1::FLOAT64, 8, {"float64", "fp64", "f64", "double"}},
    {v1::FLOAT32, 4, {"float32", "fp32", "f32", "float"}},
    {v1::FLOAT16, 2, {"float16", "fp16", "f16", "half"}},
    {v1::BFLOAT16, 2, {"bfloat16", "bf16"}},
    {v1::FLOAT8_E4M3FN, 1, {"float8_e4m3fn"}},
    {v1::FLOAT8_E5M2, 1, {"float8_e5m2"}},
    {v1::INT8, 1, {"int8", "i8"}},
    {v1::UINT8, 1, {"uint8", "u8"}},
    {v1::INT32, 4, {"int32", "i32"}},
    {v1::INT64, 8, {"int64", "i64"}},
    {v1::BOOL, 1, {"bool"}},
};

}  // namespace

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const Names& row : kNames) {
    for (const char* known : row.names) {
      if (known != nullptr && name == known) return row.dtype;
    }
  }
  std::string known;
  for (const Names& row : kNames) absl::StrAppend(&known, known.empty() ? "" : ", ", row.names[0]);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype \"", name, "\"; use one of ", known));
}

std::string DTypeName(DType dtype) {
  for (const Names& row : kNames) {
    if (row.dtype == dtype) return row.names[0];
  }
  return "unspecified";
}

int64_t DTypeBytes(DType dtype) {
  for (const Names& row : kNames) {
    if (row.dtype == dtype) return row.bytes;
  }
  return 0;
}

bool IsTrainable(DType dtype) {
  return dtype == v1::FLOAT64 || dtype == v1::FLOAT32 || dtype == v1::FLOAT16 ||
         dtype == v1::BFLOAT16;
}

bool IsFloatingPoint(DType dtype) {
  return IsTrainable(dtype) || dtype == v1::FLOAT8_E4M3FN || dtype == v1::FLOAT8_E5M2;
}

}  // namespace tessera
