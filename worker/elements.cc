#include "worker/elements.h"

#include <bit>
#include <cstring>

#include "common/float_bits.h"

namespace tessera {

double ElementOf(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case v1::FLOAT64:
      return static_cast<const double*>(data)[i];
    case v1::FLOAT32:
      return static_cast<const float*>(data)[i];
    case v1::BFLOAT16:
      return FloatFromBFloat16(static_cast<const uint16_t*>(data)[i]);
    case v1::FLOAT16:
      return FloatFromFloat16(static_cast<const uint16_t*>(data)[i]);
    default:
      return 0;
  }
}

void SetElement(void* data, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case v1::FLOAT64:
      static_cast<double*>(data)[i] = value;
      break;
    case v1::FLOAT32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case v1::BFLOAT16:
      static_cast<uint16_t*>(data)[i] = BFloat16FromFloat(static_cast<float>(value));
      break;
    case v1::FLOAT16:
      static_cast<uint16_t*>(data)[i] = Float16FromFloat(static_cast<float>(value));
      break;
    default:
      break;
  }
}

void CastElements(const FlatTensor& from, const FlatTensor& to) {
  if (from.dtype == to.dtype) {
    if (to.numel > 0) std::memmove(to.data, from.data, to.bytes());
    return;
  }
  for (int64_t i = 0; i < to.numel; ++i)
    SetElement(to.data, to.dtype, i, ElementOf(from.data, from.dtype, i));
}

void AddElements(const FlatTensor& from, const FlatTensor& to) {
  const bool wide = from.dtype == v1::FLOAT64 || to.dtype == v1::FLOAT64;
  for (int64_t i = 0; i < to.numel; ++i) {
    const double term = ElementOf(from.data, from.dtype, i);
    const double sum = ElementOf(to.data, to.dtype, i);
    SetElement(to.data, to.dtype, i,
               wide ? sum + term : static_cast<float>(sum) + static_cast<float>(term));
  }
}

void DivideElements(const FlatTensor& tensor, double divisor) {
  if (divisor == 1) return;
  for (int64_t i = 0; i < tensor.numel; ++i) {
    const double value = ElementOf(tensor.data, tensor.dtype, i);
    SetElement(tensor.data, tensor.dtype, i,
               tensor.dtype == v1::FLOAT64
                   ? value / divisor
                   : static_cast<float>(value) / static_cast<float>(divisor));
  }
}

uint64_t HashBytes(absl::string_view bytes, uint64_t seed) {
  // Eight bytes at a time: multiply and fold, so that every bit reaches every other.
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  uint64_t hash = (seed ^ bytes.size()) * kPrime + 1;
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t taken = bytes.size() < sizeof(word) ? bytes.size() : sizeof(word);
    std::memcpy(&word, bytes.data(), taken);
    hash = std::rotl(hash ^ (word * kPrime), 29) * kPrime;
    bytes.remove_prefix(taken);
  }
  return hash ^ (hash >> 32);
}

}  // namespace tessera
