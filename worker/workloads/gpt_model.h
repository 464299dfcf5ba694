// A GPT-2 (decoder-only transformer: token and position embeddings, pre-norm blocks of causal
// attention and a GELU MLP, final layer norm, output layer tied to the token embedding), forward
// and backward, one block at a time. Parameters and gradients are the caller's: a block's
// parameters need be in memory only while that block computes.
//
//   TESSERA_ASSIGN_OR_RETURN(auto model, GptModel::Create({.layers = 4, .width = 128, ...}));
//   TESSERA_RETURN_IF_ERROR(model->EmbedForward(root, tokens));
//   for (int64_t i = 0; i < 4; ++i) TESSERA_RETURN_IF_ERROR(model->BlockForward(i, block[i]));
//   TESSERA_ASSIGN_OR_RETURN(const double loss_sum, model->HeadForward(root, targets));
//   TESSERA_RETURN_IF_ERROR(model->HeadBackward(root, targets, scale, root_gradients));
//   for (int64_t i = 3; i >= 0; --i) {
//     TESSERA_RETURN_IF_ERROR(model->BlockBackward(i, block[i], block_gradients[i]));
//   }
//   TESSERA_RETURN_IF_ERROR(model->EmbedBackward(tokens, root_gradients));
//
// The model owns its activations: one region of memory, allocated and touched by Create. Where a
// parameter is not in float32 or a gradient is added to another, the first pass also allocates what
// the largest parameter takes in float32; later ones allocate nothing. Calls come in the order
// above; a forward may also stand alone. With recompute a block's backward comes right after its
// BlockRecompute. Thread-safety: one thread at a time.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_MODEL_H_
#define TESSERA_WORKER_WORKLOADS_GPT_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/workloads/block_float32.h"
#include "worker/workloads/gpt_layers.h"

namespace tessera {

struct GptShape {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;    // divides width
  int64_t context = 0;  // tokens of a sequence
  int64_t vocab = 0;
  int64_t sequences = 0;  // of one pass
  bool attention =
      true;  // false: a block's attention adds nothing, and its parameters get no gradient
  // Blocks whose weights are bfloat16 multiply in it (bfloat16_linear.h); CheckBFloat16 is OK.
  bool bfloat16 = false;
  // A block's forward keeps its input alone; BlockRecompute makes the rest again.
  bool recompute = false;
};

// The parameters of a block, "h.N." before each name, in the order of kBlockParameterNames; C =
// width.
enum BlockParameter {
  kLn1Weight,       // [C]
  kLn1Bias,         // [C]
  kAttnWeight,      // [C, 3C]: query, key, value
  kAttnBias,        // [3C]
  kAttnProjWeight,  // [C, C]
  kAttnProjBias,    // [C]
  kLn2Weight,       // [C]
  kLn2Bias,         // [C]
  kFcWeight,        // [C, 4C]
  kFcBias,          // [4C]
  kMlpProjWeight,   // [4C, C]
  kMlpProjBias,     // [C]
  kBlockParameters
};
inline constexpr std::array<const char*, kBlockParameters> kBlockParameterNames = {
    "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
    "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
    "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};

// The parameters outside the blocks.
enum RootParameter {
  kWte,        // [vocab, C]; also the output layer
  kWpe,        // [context, C]
  kLnFWeight,  // [C]
  kLnFBias,    // [C]
  kRootParameters
};
inline constexpr std::array<const char*, kRootParameters> kRootParameterNames = {
    "wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"};

// Elements of each parameter.
std::array<int64_t, kBlockParameters> BlockNumel(const GptShape& shape);
std::array<int64_t, kRootParameters> RootNumel(const GptShape& shape);

using BlockTensors = std::array<BlockTensor, kBlockParameters>;
using BlockGradients = std::array<BlockGradient, kBlockParameters>;
using RootTensors = std::array<const float*, kRootParameters>;
using RootGradients = std::array<GradientTarget, kRootParameters>;

class GptModel {
 public:
  // INVALID_ARGUMENT: an extent is not positive or heads does not divide width. RESOURCE_EXHAUSTED:
  // no memory for the activations. INTERNAL: as onednn_kernel.h, also for every call below.
  static absl::StatusOr<std::unique_ptr<GptModel>> Create(const GptShape& shape);
  ~GptModel();

  const GptShape& shape() const;
  // Of that region: what coordinator/gpt_activations.h forecasts.
  int64_t activation_bytes() const;
  // Of float32 that stands in for blocks in another dtype; also forecast there.
  int64_t stand_in_bytes() const;

  // `tokens` and `targets`: sequences x context of them, sequence after sequence, each below vocab;
  // a target below 0 does not count. INVALID_ARGUMENT otherwise.
  absl::Status EmbedForward(const RootTensors& root, absl::Span<const int32_t> tokens);
  absl::Status BlockForward(int64_t layer, const BlockTensors& block);
  // The sum of the cross-entropy over the targets that count, in nats.
  absl::StatusOr<double> HeadForward(const RootTensors& root, absl::Span<const int32_t> targets);

  // Gradients of `scale` x that sum. HeadBackward writes wte, ln_f.weight and ln_f.bias;
  // EmbedBackward wpe and, as the second contribution, wte: its target then says accumulate.
  absl::Status HeadBackward(const RootTensors& root, absl::Span<const int32_t> targets, float scale,
                            const RootGradients& gradients);
  // The block's activations, as its forward made them, bit for bit.
  absl::Status BlockRecompute(int64_t layer, const BlockTensors& block);
  absl::Status BlockBackward(int64_t layer, const BlockTensors& block,
                             const BlockGradients& gradients);
  absl::Status EmbedBackward(absl::Span<const int32_t> tokens, const RootGradients& gradients);

 private:
  class Impl;
  explicit GptModel(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_MODEL_H_
