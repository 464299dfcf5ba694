#include "worker/workloads/block_linear.h"

#include <utility>

#include "common/status_macros.h"

namespace tessera {

BlockLinear::BlockLinear(LinearLayer layer, BlockFloat32* float32)
    : layer_(std::move(layer)), float32_(float32) {}

absl::StatusOr<BlockLinear> BlockLinear::Create(const LinearLayer::Options& options, bool bfloat16,
                                                BlockFloat32* float32) {
  TESSERA_ASSIGN_OR_RETURN(LinearLayer layer, LinearLayer::Create(options));
  BlockLinear made(std::move(layer), float32);
  if (bfloat16) {
    TESSERA_ASSIGN_OR_RETURN(made.bfloat16_, BFloat16Linear::Create(options));
  }
  return made;
}

absl::Status BlockLinear::Forward(const float* input, const BlockTensor& weight,
                                  const BlockTensor& bias, float* output) {
  const float* bias_values = float32_->Vector(bias, layer_.bias_numel(), 0);
  if (Multiplies(weight.dtype)) {
    return bfloat16_->Forward(input, static_cast<const uint16_t*>(weight.data), bias_values,
                              output);
  }
  return layer_.Forward(input, float32_->Matrix(weight, layer_.weight_numel()), bias_values,
                        output);
}

absl::Status BlockLinear::BackwardInput(const BlockTensor& weight, const float* output_gradient,
                                        float* input_gradient) {
  if (Multiplies(weight.dtype)) {
    return bfloat16_->BackwardInput(static_cast<const uint16_t*>(weight.data), output_gradient,
                                    input_gradient);
  }
  return layer_.BackwardInput(float32_->Matrix(weight, layer_.weight_numel()), output_gradient,
                              input_gradient);
}

absl::Status BlockLinear::BackwardParameters(const float* input, const float* output_gradient,
                                             const BlockGradient& weight,
                                             const BlockGradient& bias) {
  const GradientTarget weight_target = float32_->OpenMatrix(weight, layer_.weight_numel());
  const GradientTarget bias_target = float32_->OpenVector(bias, layer_.bias_numel(), 0);
  const bool both = weight_target.data != nullptr && bias_target.data != nullptr;
  TESSERA_RETURN_IF_ERROR(
      both && Multiplies(weight.dtype)
          ? bfloat16_->BackwardParameters(input, output_gradient, weight_target, bias_target)
          : layer_.BackwardParameters(input, output_gradient, weight_target, bias_target));
  BlockFloat32::Close(weight, layer_.weight_numel(), weight_target);
  BlockFloat32::Close(bias, layer_.bias_numel(), bias_target);
  return absl::OkStatus();
}

}  // namespace tessera
