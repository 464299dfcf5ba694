#include "worker/workloads/gpt_model.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/workloads/block_linear.h"
#include "worker/workloads/float_region.h"

namespace tessera {
namespace {

// What a block's forward keeps for its backward.
struct BlockActivations {
  float* input = nullptr;  // the residual stream as the block finds it
  float* ln_1 = nullptr;
  float* ln_1_mean = nullptr;
  float* ln_1_variance = nullptr;
  AttentionLayer::Activations attention;
  float* attended = nullptr;
  float* middle = nullptr;  // the residual stream between attention and MLP
  float* ln_2 = nullptr;
  float* ln_2_mean = nullptr;
  float* ln_2_variance = nullptr;
  float* fc = nullptr;
  float* gelu = nullptr;
};

absl::Status CheckTokens(absl::Span<const int32_t> tokens, int64_t count, int64_t vocab,
                         bool may_be_negative) {
  if (static_cast<int64_t>(tokens.size()) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pass has ", count, " tokens; ", tokens.size(), " were given"));
  }
  for (const int32_t token : tokens) {
    if (token >= vocab || (token < 0 && !may_be_negative)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " is outside the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

}  // namespace

class GptModel::Impl {
 public:
  explicit Impl(const GptShape& shape)
      : shape_(shape), rows_(shape.sequences * shape.context), stream_numel_(rows_ * shape.width) {}

  absl::Status Prepare() {
    TESSERA_RETURN_IF_ERROR(MakeLayers());
    FloatRegion counted(nullptr);
    Place(counted);
    const size_t bytes = static_cast<size_t>(counted.used()) * sizeof(float);
    activation_bytes_ = static_cast<int64_t>(bytes);
    memory_ = AllocateFloats(bytes);
    if (memory_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", bytes,
                       " bytes of activations; lower model.context, "
                       "global_batch or model.layers"));
    }
    std::memset(memory_.get(), 0, bytes);  // every page is there before the first step
    FloatRegion region(memory_.get());
    Place(region);
    return absl::OkStatus();
  }

  absl::Status EmbedForward(const RootTensors& root, absl::Span<const int32_t> tokens) {
    TESSERA_RETURN_IF_ERROR(CheckTokens(tokens, rows_, shape_.vocab, false));
    EmbeddingForward(tokens, shape_.context, shape_.width, root[kWte], root[kWpe], Input(0));
    return absl::OkStatus();
  }
  absl::Status BlockForward(int64_t layer, const BlockTensors& block) {
    TESSERA_RETURN_IF_ERROR(CheckLayer(layer));
    TESSERA_RETURN_IF_ERROR(AttentionForward(blocks_[layer], block));
    return MlpForward(blocks_[layer], block, Input(layer + 1));
  }
  absl::StatusOr<double> HeadForward(const RootTensors& root, absl::Span<const int32_t> targets) {
    TESSERA_RETURN_IF_ERROR(CheckTokens(targets, rows_, shape_.vocab, true));
    TESSERA_RETURN_IF_ERROR(norm_->Forward(Input(shape_.layers), root[kLnFWeight], root[kLnFBias],
                                           ln_f_, ln_f_mean_, ln_f_variance_));
    TESSERA_RETURN_IF_ERROR(head_->Forward(ln_f_, root[kWte], nullptr, logits_));
    return cross_entropy_->Forward(logits_, targets);
  }

  absl::Status HeadBackward(const RootTensors& root, absl::Span<const int32_t> targets, float scale,
                            const RootGradients& gradients) {
    TESSERA_RETURN_IF_ERROR(CheckTokens(targets, rows_, shape_.vocab, true));
    TESSERA_RETURN_IF_ERROR(cross_entropy_->Backward(logits_, targets, scale));
    TESSERA_RETURN_IF_ERROR(head_->BackwardParameters(ln_f_, logits_, gradients[kWte], {}));
    TESSERA_RETURN_IF_ERROR(head_->BackwardInput(root[kWte], logits_, stream_scratch_));
    return norm_->Backward(Input(shape_.layers), root[kLnFWeight], root[kLnFBias], ln_f_mean_,
                           ln_f_variance_, stream_scratch_, stream_gradient_, gradients[kLnFWeight],
                           gradients[kLnFBias]);
  }
  absl::Status BlockRecompute(int64_t layer, const BlockTensors& block) {
    TESSERA_RETURN_IF_ERROR(CheckLayer(layer));
    TESSERA_RETURN_IF_ERROR(AttentionForward(blocks_[layer], block));
    return MlpHidden(blocks_[layer], block);
  }
  absl::Status BlockBackward(int64_t layer, const BlockTensors& block,
                             const BlockGradients& gradients) {
    TESSERA_RETURN_IF_ERROR(CheckLayer(layer));
    TESSERA_RETURN_IF_ERROR(MlpBackward(blocks_[layer], block, gradients));
    return AttentionBackward(blocks_[layer], block, gradients);
  }
  absl::Status EmbedBackward(absl::Span<const int32_t> tokens, const RootGradients& gradients) {
    TESSERA_RETURN_IF_ERROR(CheckTokens(tokens, rows_, shape_.vocab, false));
    EmbeddingBackward(tokens, shape_.context, shape_.vocab, shape_.width, stream_gradient_,
                      gradients[kWte], gradients[kWpe]);
    return absl::OkStatus();
  }

  const GptShape& shape() const { return shape_; }
  int64_t activation_bytes() const { return activation_bytes_; }
  int64_t stand_in_bytes() const { return float32_.bytes(); }

 private:
  absl::Status MakeLayers() {
    const int64_t c = shape_.width;
    const auto linear = [this](int64_t in, int64_t out) {
      return BlockLinear::Create({.rows = rows_, .in = in, .out = out}, shape_.bfloat16, &float32_);
    };
    TESSERA_ASSIGN_OR_RETURN(norm_, LayerNormLayer::Create(rows_, c));
    TESSERA_ASSIGN_OR_RETURN(c_attn_, linear(c, 3 * c));
    TESSERA_ASSIGN_OR_RETURN(attn_proj_, linear(c, c));
    TESSERA_ASSIGN_OR_RETURN(attention_, AttentionLayer::Create({.sequences = shape_.sequences,
                                                                 .context = shape_.context,
                                                                 .heads = shape_.heads,
                                                                 .head_width = c / shape_.heads}));
    TESSERA_ASSIGN_OR_RETURN(c_fc_, linear(c, 4 * c));
    TESSERA_ASSIGN_OR_RETURN(mlp_proj_, linear(4 * c, c));
    TESSERA_ASSIGN_OR_RETURN(gelu_, MakeGelu(rows_, 4 * c));
    TESSERA_ASSIGN_OR_RETURN(head_, LinearLayer::Create({.rows = rows_,
                                                         .in = c,
                                                         .out = shape_.vocab,
                                                         .order = WeightOrder::kOutIn,
                                                         .has_bias = false}));
    TESSERA_ASSIGN_OR_RETURN(cross_entropy_, CrossEntropyLayer::Create(rows_, shape_.vocab));
    return absl::OkStatus();
  }

  AttentionLayer::Activations PlaceAttention(FloatRegion& region) const {
    AttentionLayer::Activations attention;
    attention.query = region.Take(stream_numel_);
    attention.key = region.Take(stream_numel_);
    attention.value = region.Take(stream_numel_);
    attention.probabilities = region.Take(rows_ * shape_.heads * shape_.context);
    return attention;
  }

  void Place(FloatRegion& region) {
    blocks_.resize(static_cast<size_t>(shape_.layers));
    if (shape_.recompute) {
      const BlockActivations shared = PlaceBlock(region);
      for (BlockActivations& block : blocks_) {
        block = shared;
        block.input = region.Take(stream_numel_);
      }
    } else {
      for (BlockActivations& block : blocks_) {
        block = PlaceBlock(region);
        block.input = region.Take(stream_numel_);
      }
    }
    PlaceRoot(region);
  }

  // All but the input.
  BlockActivations PlaceBlock(FloatRegion& region) const {
    BlockActivations block;
    block.middle = region.Take(stream_numel_);
    block.ln_2 = region.Take(stream_numel_);
    block.ln_2_mean = region.Take(rows_);
    block.ln_2_variance = region.Take(rows_);
    block.fc = region.Take(4 * stream_numel_);
    block.gelu = region.Take(4 * stream_numel_);
    if (!shape_.attention) return block;
    block.ln_1 = region.Take(stream_numel_);
    block.ln_1_mean = region.Take(rows_);
    block.ln_1_variance = region.Take(rows_);
    block.attention = PlaceAttention(region);
    block.attended = region.Take(stream_numel_);
    return block;
  }

  void PlaceRoot(FloatRegion& region) {
    output_ = region.Take(stream_numel_);
    ln_f_ = region.Take(stream_numel_);
    ln_f_mean_ = region.Take(rows_);
    ln_f_variance_ = region.Take(rows_);
    logits_ = region.Take(rows_ * shape_.vocab);
    stream_gradient_ = region.Take(stream_numel_);
    stream_scratch_ = region.Take(stream_numel_);
    norm_scratch_ = region.Take(stream_numel_);
    wide_scratch_ = region.Take(4 * stream_numel_);
    if (shape_.attention) attention_scratch_ = PlaceAttention(region);
  }

  absl::Status CheckLayer(int64_t layer) const {
    if (layer >= 0 && layer < shape_.layers) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("there is no block ", layer, " in a model of ", shape_.layers));
  }

  // The residual stream before block `layer`; after the last one with `layer` = layers.
  float* Input(int64_t layer) { return layer < shape_.layers ? blocks_[layer].input : output_; }

  absl::Status Norm(const float* input, const BlockTensor& weight, const BlockTensor& bias,
                    float* output, float* mean, float* variance) {
    return norm_->Forward(input, float32_.Vector(weight, shape_.width, 0),
                          float32_.Vector(bias, shape_.width, 1), output, mean, variance);
  }
  // Adds to stream_gradient_ what stream_scratch_, the gradient of the norm's output, is of its
  // input.
  absl::Status NormGradients(const float* input, const BlockTensor& weight, const BlockTensor& bias,
                             const float* mean, const float* variance,
                             const BlockGradient& weight_gradient,
                             const BlockGradient& bias_gradient) {
    const int64_t c = shape_.width;
    const GradientTarget weight_target = float32_.OpenVector(weight_gradient, c, 2);
    const GradientTarget bias_target = float32_.OpenVector(bias_gradient, c, 3);
    TESSERA_RETURN_IF_ERROR(
        norm_->Backward(input, float32_.Vector(weight, c, 0), float32_.Vector(bias, c, 1), mean,
                        variance, stream_scratch_, norm_scratch_, weight_target, bias_target));
    BlockFloat32::Close(weight_gradient, c, weight_target);
    BlockFloat32::Close(bias_gradient, c, bias_target);
    AddTo(stream_gradient_, norm_scratch_, stream_numel_);
    return absl::OkStatus();
  }

  absl::Status AttentionForward(BlockActivations& a, const BlockTensors& p) {
    if (!shape_.attention) {
      std::memcpy(a.middle, a.input, static_cast<size_t>(stream_numel_) * sizeof(float));
      return absl::OkStatus();
    }
    TESSERA_RETURN_IF_ERROR(
        Norm(a.input, p[kLn1Weight], p[kLn1Bias], a.ln_1, a.ln_1_mean, a.ln_1_variance));
    TESSERA_RETURN_IF_ERROR(c_attn_->Forward(a.ln_1, p[kAttnWeight], p[kAttnBias], wide_scratch_));
    TESSERA_RETURN_IF_ERROR(
        attention_->Forward(wide_scratch_, a.attention, stream_scratch_, a.attended));
    TESSERA_RETURN_IF_ERROR(
        attn_proj_->Forward(a.attended, p[kAttnProjWeight], p[kAttnProjBias], a.middle));
    AddTo(a.middle, a.input, stream_numel_);
    return absl::OkStatus();
  }

  absl::Status MlpHidden(BlockActivations& a, const BlockTensors& p) {
    TESSERA_RETURN_IF_ERROR(
        Norm(a.middle, p[kLn2Weight], p[kLn2Bias], a.ln_2, a.ln_2_mean, a.ln_2_variance));
    TESSERA_RETURN_IF_ERROR(c_fc_->Forward(a.ln_2, p[kFcWeight], p[kFcBias], a.fc));
    return gelu_.forward->Run({{DNNL_ARG_SRC, a.fc}, {DNNL_ARG_DST, a.gelu}});
  }
  absl::Status MlpForward(BlockActivations& a, const BlockTensors& p, float* output) {
    TESSERA_RETURN_IF_ERROR(MlpHidden(a, p));
    TESSERA_RETURN_IF_ERROR(mlp_proj_->Forward(a.gelu, p[kMlpProjWeight], p[kMlpProjBias], output));
    AddTo(output, a.middle, stream_numel_);
    return absl::OkStatus();
  }

  // Takes stream_gradient_ from after the MLP to before it.
  absl::Status MlpBackward(BlockActivations& a, const BlockTensors& p, const BlockGradients& g) {
    TESSERA_RETURN_IF_ERROR(mlp_proj_->BackwardParameters(a.gelu, stream_gradient_,
                                                          g[kMlpProjWeight], g[kMlpProjBias]));
    TESSERA_RETURN_IF_ERROR(
        mlp_proj_->BackwardInput(p[kMlpProjWeight], stream_gradient_, wide_scratch_));
    TESSERA_RETURN_IF_ERROR(gelu_.backward->Run({{DNNL_ARG_SRC, a.fc},
                                                 {DNNL_ARG_DIFF_DST, wide_scratch_},
                                                 {DNNL_ARG_DIFF_SRC, wide_scratch_}}));
    TESSERA_RETURN_IF_ERROR(
        c_fc_->BackwardParameters(a.ln_2, wide_scratch_, g[kFcWeight], g[kFcBias]));
    TESSERA_RETURN_IF_ERROR(c_fc_->BackwardInput(p[kFcWeight], wide_scratch_, stream_scratch_));
    return NormGradients(a.middle, p[kLn2Weight], p[kLn2Bias], a.ln_2_mean, a.ln_2_variance,
                         g[kLn2Weight], g[kLn2Bias]);
  }

  // Takes stream_gradient_ from after the attention to before it.
  absl::Status AttentionBackward(BlockActivations& a, const BlockTensors& p,
                                 const BlockGradients& g) {
    if (!shape_.attention) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(attn_proj_->BackwardParameters(a.attended, stream_gradient_,
                                                           g[kAttnProjWeight], g[kAttnProjBias]));
    TESSERA_RETURN_IF_ERROR(
        attn_proj_->BackwardInput(p[kAttnProjWeight], stream_gradient_, stream_scratch_));
    TESSERA_RETURN_IF_ERROR(attention_->Backward(stream_scratch_, a.attention, attention_scratch_,
                                                 norm_scratch_, wide_scratch_));
    TESSERA_RETURN_IF_ERROR(
        c_attn_->BackwardParameters(a.ln_1, wide_scratch_, g[kAttnWeight], g[kAttnBias]));
    TESSERA_RETURN_IF_ERROR(c_attn_->BackwardInput(p[kAttnWeight], wide_scratch_, stream_scratch_));
    return NormGradients(a.input, p[kLn1Weight], p[kLn1Bias], a.ln_1_mean, a.ln_1_variance,
                         g[kLn1Weight], g[kLn1Bias]);
  }

  const GptShape shape_;
  const int64_t rows_;          // tokens of a pass
  const int64_t stream_numel_;  // rows x width

  BlockFloat32 float32_;
  std::optional<LayerNormLayer> norm_;
  std::optional<BlockLinear> c_attn_;
  std::optional<BlockLinear> attn_proj_;
  std::optional<AttentionLayer> attention_;
  std::optional<BlockLinear> c_fc_;
  std::optional<BlockLinear> mlp_proj_;
  GeluKernels gelu_;
  std::optional<LinearLayer> head_;
  std::optional<CrossEntropyLayer> cross_entropy_;

  int64_t activation_bytes_ = 0;
  FloatMemory memory_;  // everything below lies in it
  std::vector<BlockActivations> blocks_;
  float* output_ = nullptr;  // the residual stream after the last block
  float* ln_f_ = nullptr;
  float* ln_f_mean_ = nullptr;
  float* ln_f_variance_ = nullptr;
  float* logits_ = nullptr;           // then log-probabilities, then their gradient
  float* stream_gradient_ = nullptr;  // of the residual stream, where the backward has got to
  float* stream_scratch_ = nullptr;
  float* norm_scratch_ = nullptr;
  float* wide_scratch_ = nullptr;  // rows x 4 width
  AttentionLayer::Scratch attention_scratch_;
};

std::array<int64_t, kRootParameters> RootNumel(const GptShape& shape) {
  return {shape.vocab * shape.width, shape.context * shape.width, shape.width, shape.width};
}

std::array<int64_t, kBlockParameters> BlockNumel(const GptShape& shape) {
  const int64_t c = shape.width;
  return {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c};
}

absl::StatusOr<std::unique_ptr<GptModel>> GptModel::Create(const GptShape& shape) {
  for (const int64_t extent :
       {shape.layers, shape.width, shape.heads, shape.context, shape.vocab, shape.sequences}) {
    if (extent <= 0) {
      return absl::InvalidArgumentError("every extent of a gpt must be positive");
    }
  }
  if (shape.width % shape.heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.heads, " heads do not divide a width of ", shape.width));
  }
  auto impl = std::make_unique<Impl>(shape);
  TESSERA_RETURN_IF_ERROR(impl->Prepare());
  return absl::WrapUnique(new GptModel(std::move(impl)));
}

GptModel::GptModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GptModel::~GptModel() = default;

const GptShape& GptModel::shape() const { return impl_->shape(); }

int64_t GptModel::activation_bytes() const { return impl_->activation_bytes(); }
int64_t GptModel::stand_in_bytes() const { return impl_->stand_in_bytes(); }

absl::Status GptModel::EmbedForward(const RootTensors& root, absl::Span<const int32_t> tokens) {
  return impl_->EmbedForward(root, tokens);
}

absl::Status GptModel::BlockForward(int64_t layer, const BlockTensors& block) {
  return impl_->BlockForward(layer, block);
}

absl::StatusOr<double> GptModel::HeadForward(const RootTensors& root,
                                             absl::Span<const int32_t> targets) {
  return impl_->HeadForward(root, targets);
}

absl::Status GptModel::HeadBackward(const RootTensors& root, absl::Span<const int32_t> targets,
                                    float scale, const RootGradients& gradients) {
  return impl_->HeadBackward(root, targets, scale, gradients);
}

absl::Status GptModel::BlockRecompute(int64_t layer, const BlockTensors& block) {
  return impl_->BlockRecompute(layer, block);
}
absl::Status GptModel::BlockBackward(int64_t layer, const BlockTensors& block,
                                     const BlockGradients& gradients) {
  return impl_->BlockBackward(layer, block, gradients);
}

absl::Status GptModel::EmbedBackward(absl::Span<const int32_t> tokens,
                                     const RootGradients& gradients) {
  return impl_->EmbedBackward(tokens, gradients);
}

}  // namespace tessera
