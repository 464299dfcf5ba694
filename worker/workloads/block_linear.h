// A linear layer of a block, for weights in the dtype that they are in memory in: bfloat16 is
// multiplied as it is where that was asked for, everything else is widened to float32.
//
//   BlockFloat32 float32;
//   TESSERA_ASSIGN_OR_RETURN(auto layer, BlockLinear::Create({.rows = 768, .in = 128, .out = 512},
//                                                            /*bfloat16=*/false, &float32));
//   TESSERA_RETURN_IF_ERROR(layer.Forward(input, weight, bias, output));
//
// Errors are those of onednn_kernel.h. Thread-safety: one thread at a time.
#ifndef TESSERA_WORKER_WORKLOADS_BLOCK_LINEAR_H_
#define TESSERA_WORKER_WORKLOADS_BLOCK_LINEAR_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/workloads/bfloat16_linear.h"
#include "worker/workloads/block_float32.h"
#include "worker/workloads/gpt_layers.h"

namespace tessera {

class BlockLinear {
 public:
  // `bfloat16`: CheckBFloat16 is OK. `float32` outlives the layer; layers used by turns share it.
  static absl::StatusOr<BlockLinear> Create(const LinearLayer::Options& options, bool bfloat16,
                                            BlockFloat32* float32);

  // As LinearLayer's.
  absl::Status Forward(const float* input, const BlockTensor& weight, const BlockTensor& bias,
                       float* output);
  absl::Status BackwardInput(const BlockTensor& weight, const float* output_gradient,
                             float* input_gradient);
  absl::Status BackwardParameters(const float* input, const float* output_gradient,
                                  const BlockGradient& weight, const BlockGradient& bias);

 private:
  BlockLinear(LinearLayer layer, BlockFloat32* float32);
  bool Multiplies(DType dtype) const { return dtype == v1::BFLOAT16 && bfloat16_.has_value(); }

  LinearLayer layer_;
  std::optional<BFloat16Linear> bfloat16_;
  BlockFloat32* float32_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_BLOCK_LINEAR_H_
