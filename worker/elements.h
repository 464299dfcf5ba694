// Elements of any trainable dtype, one at a time: for what is off the step's path. (The step's own
// loops are in worker/collectives/cpu_kernels.h.)
//
// Thread-safety: pure functions.
#ifndef TESSERA_WORKER_ELEMENTS_H_
#define TESSERA_WORKER_ELEMENTS_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/dtype.h"

namespace tessera {

// Elements in memory that somebody else owns.
struct FlatTensor {
  void* data = nullptr;
  int64_t numel = 0;
  DType dtype = v1::DTYPE_UNSPECIFIED;

  // The elements as T; the caller has looked at dtype.
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int64_t bytes() const { return numel * DTypeBytes(dtype); }
};

// Element i as a double. Exact.
double ElementOf(const void* data, DType dtype, int64_t i);
// Sets element i to `value`, rounded to nearest even. float64 goes to 16 bits by way of float32.
void SetElement(void* data, DType dtype, int64_t i, double value);

// to[i] = from[i]; both as long as `to`. They do not overlap, or begin at one place with elements
// of `to` no longer than those of `from`.
void CastElements(const FlatTensor& from, const FlatTensor& to);
// to[i] = to[i] + from[i], rounded to the dtype of `to`; both as long as `to`.
void AddElements(const FlatTensor& from, const FlatTensor& to);
// A true division, not a multiplication by a reciprocal; by 1 nothing happens.
void DivideElements(const FlatTensor& tensor, double divisor);

// 64 bits of the bytes, to tell whether two ranks have the same. Not against an adversary. `seed`:
// of what came before.
uint64_t HashBytes(absl::string_view bytes, uint64_t seed = 0);

}  // namespace tessera

#endif  // TESSERA_WORKER_ELEMENTS_H_
