// A linear layer that multiplies in bfloat16, through oneDNN, where the processor does that by
// itself. Weights are bfloat16 in memory; input and output are float32, and the input, like the
// output's gradient, is rounded on its way in. Sums are float32.
//
//   if (CheckBFloat16().ok()) {
//     TESSERA_ASSIGN_OR_RETURN(auto layer, BFloat16Linear::Create({.rows = 768, .in = 128,
//                                                                  .out = 512}));
//     TESSERA_RETURN_IF_ERROR(layer.Forward(input, weight, bias, output));
//   }
//
// Errors are those of onednn_kernel.h. Thread-safety: one thread at a time.
#ifndef TESSERA_WORKER_WORKLOADS_BFLOAT16_LINEAR_H_
#define TESSERA_WORKER_WORKLOADS_BFLOAT16_LINEAR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/workloads/gpt_layers.h"

namespace tessera {

// Whether this processor and oneDNN multiply bfloat16 rightly: small products, forward and
// backward, are held against plain loops. UNIMPLEMENTED: the processor does not. INTERNAL: oneDNN
// refuses, or a product is wrong. Made once a process.
const absl::Status& CheckBFloat16();

class BFloat16Linear {
 public:
  // Where CheckBFloat16 is not OK this fails or cannot be trusted.
  static absl::StatusOr<BFloat16Linear> Create(const LinearLayer::Options& options);

  // As LinearLayer's; `weight` is bfloat16.
  absl::Status Forward(const float* input, const uint16_t* weight, const float* bias,
                       float* output);
  absl::Status BackwardInput(const uint16_t* weight, const float* output_gradient,
                             float* input_gradient);
  // Neither target is null or accumulates.
  absl::Status BackwardParameters(const float* input, const float* output_gradient,
                                  GradientTarget weight, GradientTarget bias);

 private:
  BFloat16Linear(const LinearLayer::Options& options, LinearKernels kernels);

  LinearLayer::Options options_;
  LinearKernels kernels_;
  std::vector<uint16_t> input_, output_gradient_;  // rounded
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_BFLOAT16_LINEAR_H_
