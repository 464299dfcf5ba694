// A block's parameters and gradients in the dtypes that they are in memory in, and what the layers,
// which compute in float32, make of them: what is not float32 is widened, or rounded once, a
// parameter at a time, so no float32 copy of a block ever exists.
//
//   BlockFloat32 float32;
//   Forward(input, float32.Matrix(weight, numel), output);
//   const GradientTarget target = float32.OpenMatrix(gradient, numel);
//   BackwardParameters(input, output_gradient, target);
//   BlockFloat32::Close(gradient, numel, target);
//
// Memory grows to what the largest parameter takes in float32, and stays. Thread-safety: one thread
// at a time.
#ifndef TESSERA_WORKER_WORKLOADS_BLOCK_FLOAT32_H_
#define TESSERA_WORKER_WORKLOADS_BLOCK_FLOAT32_H_

#include <array>
#include <cstdint>
#include <vector>

#include "common/dtype.h"
#include "worker/workloads/gpt_layers.h"

namespace tessera {

struct BlockTensor {
  BlockTensor() = default;
  BlockTensor(const float* values) : data(values) {}  // NOLINT: a pointer to floats is one
  BlockTensor(const void* values, DType its_dtype) : data(values), dtype(its_dtype) {}

  const void* data = nullptr;
  DType dtype = v1::FLOAT32;
};

// Where a parameter's gradient goes. Null: it is not wanted.
struct BlockGradient {
  void* data = nullptr;
  bool accumulate = false;  // true: add to what is there
  DType dtype = v1::FLOAT32;
};

class BlockFloat32 {
 public:
  // `tensor` in float32: its own memory where it is that, else valid until the next Matrix or
  // OpenMatrix.
  const float* Matrix(const BlockTensor& tensor, int64_t numel);
  // As above, valid until `place` (0 to 3) is used again.
  const float* Vector(const BlockTensor& tensor, int64_t numel, int place);

  // Where to write a gradient; never to be added to. Valid as above.
  GradientTarget OpenMatrix(const BlockGradient& gradient, int64_t numel);
  GradientTarget OpenVector(const BlockGradient& gradient, int64_t numel, int place);
  // Takes what was written to where it belongs: rounded once, or added.
  static void Close(const BlockGradient& gradient, int64_t numel, const GradientTarget& written);

 private:
  std::vector<float> matrix_;
  std::array<std::vector<float>, 4> vectors_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_BLOCK_FLOAT32_H_
