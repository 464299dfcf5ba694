// Element types: names that people write, sizes, and which of them can be trained.
#ifndef TESSERA_COMMON_DTYPE_H_
#define TESSERA_COMMON_DTYPE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

using v1::DType;

// "float32", "bfloat16", ... and the short forms fp64 fp32 fp16 bf16 f64 f32 f16 half double float.
// INVALID_ARGUMENT: any other name; the message lists the names.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// Canonical lower-case name, e.g. "bfloat16"; "unspecified".
std::string DTypeName(DType dtype);

// Bytes of an element; 0 for DTYPE_UNSPECIFIED.
int64_t DTypeBytes(DType dtype);

// float64, float32, float16, bfloat16: what a parameter can have.
bool IsTrainable(DType dtype);

// The above and the two of 8 bits: what mixed_precision.buffer_dtype applies to.
bool IsFloatingPoint(DType dtype);

}  // namespace tessera

#endif  // TESSERA_COMMON_DTYPE_H_
