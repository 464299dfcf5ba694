#include "worker/workloads/block_float32.h"

#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

float* Sized(std::vector<float>& memory, int64_t numel) {
  if (static_cast<int64_t>(memory.size()) < numel) memory.resize(static_cast<size_t>(numel));
  return memory.data();
}

const float* Widened(const BlockTensor& tensor, int64_t numel, std::vector<float>& memory) {
  if (tensor.dtype == v1::FLOAT32) return static_cast<const float*>(tensor.data);
  WidenToFloat32(tensor.data, numel, tensor.dtype, Sized(memory, numel));
  return memory.data();
}

GradientTarget Open(const BlockGradient& gradient, int64_t numel, std::vector<float>& memory) {
  if (gradient.data == nullptr) return {};
  if (gradient.dtype == v1::FLOAT32 && !gradient.accumulate) {
    return {static_cast<float*>(gradient.data)};
  }
  return {Sized(memory, numel)};
}

}  // namespace

const float* BlockFloat32::Matrix(const BlockTensor& tensor, int64_t numel) {
  return Widened(tensor, numel, matrix_);
}

const float* BlockFloat32::Vector(const BlockTensor& tensor, int64_t numel, int place) {
  return Widened(tensor, numel, vectors_[place]);
}

GradientTarget BlockFloat32::OpenMatrix(const BlockGradient& gradient, int64_t numel) {
  return Open(gradient, numel, matrix_);
}

GradientTarget BlockFloat32::OpenVector(const BlockGradient& gradient, int64_t numel, int place) {
  return Open(gradient, numel, vectors_[place]);
}

void BlockFloat32::Close(const BlockGradient& gradient, int64_t numel,
                         const GradientTarget& written) {
  if (gradient.data == written.data) return;
  if (gradient.accumulate) {
    AddFloat32(written.data, numel, gradient.dtype, gradient.data);
  } else {
    CastFloat32(written.data, numel, gradient.dtype, gradient.data);
  }
}

}  // namespace tessera
