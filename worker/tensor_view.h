// A tensor in memory that somebody else owns.
#ifndef TESSERA_WORKER_TENSOR_VIEW_H_
#define TESSERA_WORKER_TENSOR_VIEW_H_

#include <cstdint>
#include <vector>

#include "common/dtype.h"

namespace tessera {

struct TensorView {
  void* data = nullptr;
  DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;  // row-major, contiguous
  int64_t numel = 0;

  // The elements as T; the caller has looked at dtype.
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace tessera

#endif  // TESSERA_WORKER_TENSOR_VIEW_H_
