#include "worker/workloads/gpt_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr float kLayerNormEpsilon = 1e-5f;  // GPT-2's

// oneDNN overwrites gradients. Where one is to be added, or is not wanted, it is made in scratch
// memory first.
float* WriteTo(const GradientTarget& target, std::vector<float>& scratch, int64_t numel) {
  if (target.data != nullptr && !target.accumulate) return target.data;
  if (static_cast<int64_t>(scratch.size()) < numel) scratch.resize(static_cast<size_t>(numel));
  return scratch.data();
}

void Settle(const GradientTarget& target, const float* written, int64_t numel) {
  if (target.data != nullptr && target.accumulate) AddTo(target.data, written, numel);
}

// In eight partial sums, so that it is vectorised and yet always adds in the same order.
float Dot(const float* a, const float* b, int64_t numel) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < numel; ++i, ++lane) sums[lane] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

// Where head `head` of sequence `sequence` starts in a [sequences, heads, context, head_width]
// tensor.
int64_t HeadOffset(const AttentionLayer::Shape& shape, int64_t sequence, int64_t head) {
  return (sequence * shape.heads + head) * shape.context * shape.head_width;
}

// by_head = factor x columns [first, first + width) of rows, which are row_width wide.
void SplitHeads(const AttentionLayer::Shape& shape, const float* rows, int64_t row_width,
                int64_t first, float factor, float* by_head) {
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      float* to = by_head + HeadOffset(shape, sequence, head);
      const float* from =
          rows + sequence * shape.context * row_width + first + head * shape.head_width;
      for (int64_t position = 0; position < shape.context; ++position) {
        for (int64_t i = 0; i < shape.head_width; ++i) to[i] = factor * from[i];
        to += shape.head_width;
        from += row_width;
      }
    }
  }
}

// The reverse.
void MergeHeads(const AttentionLayer::Shape& shape, const float* by_head, float factor, float* rows,
                int64_t row_width, int64_t first) {
  for (int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const float* from = by_head + HeadOffset(shape, sequence, head);
      float* to = rows + sequence * shape.context * row_width + first + head * shape.head_width;
      for (int64_t position = 0; position < shape.context; ++position) {
        for (int64_t i = 0; i < shape.head_width; ++i) to[i] = factor * from[i];
        from += shape.head_width;
        to += row_width;
      }
    }
  }
}

// gradient = probabilities x (gradient - their dot product), row by row; 0 above the diagonal.
// Ours, because oneDNN has no vectorised one for AVX2 and half of the work can be left out.
void CausalSoftmaxBackward(const AttentionLayer::Shape& shape, const float* probabilities,
                           float* gradient) {
  const int64_t matrices = shape.sequences * shape.heads;
  for (int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (int64_t row = 0; row < shape.context; ++row) {
      const float dot = Dot(probabilities, gradient, row + 1);
      for (int64_t i = 0; i <= row; ++i) gradient[i] = probabilities[i] * (gradient[i] - dot);
      std::fill(gradient + row + 1, gradient + shape.context, 0.0f);
      probabilities += shape.context;
      gradient += shape.context;
    }
  }
}

}  // namespace

void AddTo(float* a, const float* b, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) a[i] += b[i];
}

LinearLayer::LinearLayer(const Options& options, LinearKernels kernels)
    : options_(options), kernels_(std::move(kernels)) {}

absl::StatusOr<LinearLayer> LinearLayer::Create(const Options& options) {
  TESSERA_ASSIGN_OR_RETURN(LinearKernels kernels, MakeLinear(options.rows, options.in, options.out,
                                                             options.order, options.has_bias));
  return LinearLayer(options, std::move(kernels));
}

absl::Status LinearLayer::Forward(const float* input, const float* weight, const float* bias,
                                  float* output) {
  if (!options_.has_bias) {
    return kernels_.forward->Run(
        {{DNNL_ARG_SRC, input}, {DNNL_ARG_WEIGHTS, weight}, {DNNL_ARG_DST, output}});
  }
  return kernels_.forward->Run({{DNNL_ARG_SRC, input},
                                {DNNL_ARG_WEIGHTS, weight},
                                {DNNL_ARG_BIAS, bias},
                                {DNNL_ARG_DST, output}});
}

absl::Status LinearLayer::BackwardInput(const float* weight, const float* output_gradient,
                                        float* input_gradient) {
  return kernels_.backward_input->Run({{DNNL_ARG_DIFF_SRC, input_gradient},
                                       {DNNL_ARG_WEIGHTS, weight},
                                       {DNNL_ARG_DIFF_DST, output_gradient}});
}

absl::Status LinearLayer::BackwardParameters(const float* input, const float* output_gradient,
                                             GradientTarget weight, GradientTarget bias) {
  const int64_t weight_numel = options_.in * options_.out;
  float* const weight_written = WriteTo(weight, weight_scratch_, weight_numel);
  if (!options_.has_bias) {
    TESSERA_RETURN_IF_ERROR(
        kernels_.backward_parameters->Run({{DNNL_ARG_SRC, input},
                                           {DNNL_ARG_DIFF_DST, output_gradient},
                                           {DNNL_ARG_DIFF_WEIGHTS, weight_written}}));
    Settle(weight, weight_written, weight_numel);
    return absl::OkStatus();
  }
  float* const bias_written = WriteTo(bias, bias_scratch_, options_.out);
  TESSERA_RETURN_IF_ERROR(
      kernels_.backward_parameters->Run({{DNNL_ARG_SRC, input},
                                         {DNNL_ARG_DIFF_DST, output_gradient},
                                         {DNNL_ARG_DIFF_WEIGHTS, weight_written},
                                         {DNNL_ARG_DIFF_BIAS, bias_written}}));
  Settle(weight, weight_written, weight_numel);
  Settle(bias, bias_written, options_.out);
  return absl::OkStatus();
}

LayerNormLayer::LayerNormLayer(int64_t width, LayerNormKernels kernels)
    : width_(width), kernels_(std::move(kernels)), scratch_(static_cast<size_t>(2 * width)) {}

absl::StatusOr<LayerNormLayer> LayerNormLayer::Create(int64_t rows, int64_t width) {
  TESSERA_ASSIGN_OR_RETURN(LayerNormKernels kernels, MakeLayerNorm(rows, width, kLayerNormEpsilon));
  return LayerNormLayer(width, std::move(kernels));
}

absl::Status LayerNormLayer::Forward(const float* input, const float* weight, const float* bias,
                                     float* output, float* mean, float* variance) {
  return kernels_.forward->Run({{DNNL_ARG_SRC, input},
                                {DNNL_ARG_SCALE, weight},
                                {DNNL_ARG_SHIFT, bias},
                                {DNNL_ARG_DST, output},
                                {DNNL_ARG_MEAN, mean},
                                {DNNL_ARG_VARIANCE, variance}});
}

absl::Status LayerNormLayer::Backward(const float* input, const float* weight, const float* bias,
                                      const float* mean, const float* variance,
                                      const float* output_gradient, float* input_gradient,
                                      GradientTarget weight_gradient,
                                      GradientTarget bias_gradient) {
  const bool direct_weight = weight_gradient.data != nullptr && !weight_gradient.accumulate;
  const bool direct_bias = bias_gradient.data != nullptr && !bias_gradient.accumulate;
  float* const weight_written = direct_weight ? weight_gradient.data : scratch_.data();
  float* const bias_written = direct_bias ? bias_gradient.data : scratch_.data() + width_;
  TESSERA_RETURN_IF_ERROR(kernels_.backward->Run({{DNNL_ARG_SRC, input},
                                                  {DNNL_ARG_MEAN, mean},
                                                  {DNNL_ARG_VARIANCE, variance},
                                                  {DNNL_ARG_SCALE, weight},
                                                  {DNNL_ARG_SHIFT, bias},
                                                  {DNNL_ARG_DIFF_DST, output_gradient},
                                                  {DNNL_ARG_DIFF_SRC, input_gradient},
                                                  {DNNL_ARG_DIFF_SCALE, weight_written},
                                                  {DNNL_ARG_DIFF_SHIFT, bias_written}}));
  Settle(weight_gradient, weight_written, width_);
  Settle(bias_gradient, bias_written, width_);
  return absl::OkStatus();
}

absl::StatusOr<AttentionLayer> AttentionLayer::Create(const Shape& shape) {
  AttentionLayer layer(shape);
  const int64_t groups = shape.sequences * shape.heads;
  const int64_t context = shape.context;
  TESSERA_ASSIGN_OR_RETURN(layer.scores_, MakeMatmul({.groups = groups,
                                                      .m = context,
                                                      .k = shape.head_width,
                                                      .n = context,
                                                      .transpose_weights = true}));
  TESSERA_ASSIGN_OR_RETURN(
      layer.weighted_,
      MakeMatmul({.groups = groups, .m = context, .k = context, .n = shape.head_width}));
  TESSERA_ASSIGN_OR_RETURN(layer.weighted_transposed_, MakeMatmul({.groups = groups,
                                                                   .m = context,
                                                                   .k = context,
                                                                   .n = shape.head_width,
                                                                   .transpose_source = true}));
  TESSERA_ASSIGN_OR_RETURN(layer.softmax_, MakeSoftmax(groups * context, context));
  return layer;
}

absl::Status AttentionLayer::Forward(const float* qkv, const Activations& activations,
                                     float* heads_scratch, float* output) {
  const int64_t width = shape_.heads * shape_.head_width;
  const float factor = 1.0f / std::sqrt(static_cast<float>(shape_.head_width));
  SplitHeads(shape_, qkv, 3 * width, 0, factor, activations.query);
  SplitHeads(shape_, qkv, 3 * width, width, 1, activations.key);
  SplitHeads(shape_, qkv, 3 * width, 2 * width, 1, activations.value);

  float* const probabilities = activations.probabilities;
  TESSERA_RETURN_IF_ERROR(scores_->Run({{DNNL_ARG_SRC, activations.query},
                                        {DNNL_ARG_WEIGHTS, activations.key},
                                        {DNNL_ARG_DST, probabilities}}));
  // A token sees itself and what came before it.
  float* row = probabilities;
  for (int64_t i = 0; i < shape_.sequences * shape_.heads * shape_.context; ++i) {
    std::fill(row + i % shape_.context + 1, row + shape_.context,
              -std::numeric_limits<float>::infinity());
    row += shape_.context;
  }
  TESSERA_RETURN_IF_ERROR(
      softmax_->Run({{DNNL_ARG_SRC, probabilities}, {DNNL_ARG_DST, probabilities}}));
  TESSERA_RETURN_IF_ERROR(weighted_->Run({{DNNL_ARG_SRC, probabilities},
                                          {DNNL_ARG_WEIGHTS, activations.value},
                                          {DNNL_ARG_DST, heads_scratch}}));
  MergeHeads(shape_, heads_scratch, 1, output, width, 0);
  return absl::OkStatus();
}

absl::Status AttentionLayer::Backward(const float* output_gradient, const Activations& activations,
                                      const Scratch& scratch, float* heads_scratch,
                                      float* qkv_gradient) {
  const int64_t width = shape_.heads * shape_.head_width;
  const float factor = 1.0f / std::sqrt(static_cast<float>(shape_.head_width));
  SplitHeads(shape_, output_gradient, width, 0, 1, heads_scratch);
  TESSERA_RETURN_IF_ERROR(weighted_transposed_->Run({{DNNL_ARG_SRC, activations.probabilities},
                                                     {DNNL_ARG_WEIGHTS, heads_scratch},
                                                     {DNNL_ARG_DST, scratch.value}}));
  TESSERA_RETURN_IF_ERROR(scores_->Run({{DNNL_ARG_SRC, heads_scratch},
                                        {DNNL_ARG_WEIGHTS, activations.value},
                                        {DNNL_ARG_DST, scratch.probabilities}}));
  CausalSoftmaxBackward(shape_, activations.probabilities, scratch.probabilities);
  TESSERA_RETURN_IF_ERROR(weighted_->Run({{DNNL_ARG_SRC, scratch.probabilities},
                                          {DNNL_ARG_WEIGHTS, activations.key},
                                          {DNNL_ARG_DST, scratch.query}}));
  TESSERA_RETURN_IF_ERROR(weighted_transposed_->Run({{DNNL_ARG_SRC, scratch.probabilities},
                                                     {DNNL_ARG_WEIGHTS, activations.query},
                                                     {DNNL_ARG_DST, scratch.key}}));
  // The kept query is already scaled, so only the query's own gradient still needs the factor.
  MergeHeads(shape_, scratch.query, factor, qkv_gradient, 3 * width, 0);
  MergeHeads(shape_, scratch.key, 1, qkv_gradient, 3 * width, width);
  MergeHeads(shape_, scratch.value, 1, qkv_gradient, 3 * width, 2 * width);
  return absl::OkStatus();
}

CrossEntropyLayer::CrossEntropyLayer(int64_t vocab, KernelPtr log_softmax, KernelPtr exp)
    : vocab_(vocab), log_softmax_(std::move(log_softmax)), exp_(std::move(exp)) {}

absl::StatusOr<CrossEntropyLayer> CrossEntropyLayer::Create(int64_t rows, int64_t vocab) {
  TESSERA_ASSIGN_OR_RETURN(KernelPtr log_softmax, MakeLogSoftmax(rows, vocab));
  TESSERA_ASSIGN_OR_RETURN(KernelPtr exp, MakeExp(rows, vocab));
  return CrossEntropyLayer(vocab, std::move(log_softmax), std::move(exp));
}

absl::StatusOr<double> CrossEntropyLayer::Forward(float* logits,
                                                  absl::Span<const int32_t> targets) {
  TESSERA_RETURN_IF_ERROR(log_softmax_->Run({{DNNL_ARG_SRC, logits}, {DNNL_ARG_DST, logits}}));
  double sum = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] >= 0) sum -= logits[static_cast<int64_t>(row) * vocab_ + targets[row]];
  }
  return sum;
}

absl::Status CrossEntropyLayer::Backward(float* log_probabilities,
                                         absl::Span<const int32_t> targets, float scale) {
  TESSERA_RETURN_IF_ERROR(
      exp_->Run({{DNNL_ARG_SRC, log_probabilities}, {DNNL_ARG_DST, log_probabilities}}));
  float* row = log_probabilities;
  for (const int32_t target : targets) {
    if (target < 0) {
      std::fill(row, row + vocab_, 0.0f);
    } else {
      // Subtract first: at a confident token p - 1 is exact, while scale x p - scale would round
      // twice.
      row[target] -= 1;
      for (int64_t i = 0; i < vocab_; ++i) row[i] *= scale;
    }
    row += vocab_;
  }
  return absl::OkStatus();
}

void EmbeddingForward(absl::Span<const int32_t> tokens, int64_t context, int64_t width,
                      const float* token_table, const float* position_table, float* output) {
  for (size_t row = 0; row < tokens.size(); ++row) {
    const float* token = token_table + tokens[row] * width;
    const float* position = position_table + static_cast<int64_t>(row) % context * width;
    for (int64_t i = 0; i < width; ++i) output[i] = token[i] + position[i];
    output += width;
  }
}

void EmbeddingBackward(absl::Span<const int32_t> tokens, int64_t context, int64_t vocab,
                       int64_t width, const float* output_gradient, GradientTarget token_table,
                       GradientTarget position_table) {
  if (token_table.data != nullptr && !token_table.accumulate) {
    std::fill_n(token_table.data, vocab * width, 0.0f);
  }
  if (position_table.data != nullptr && !position_table.accumulate) {
    std::fill_n(position_table.data, context * width, 0.0f);
  }
  for (size_t row = 0; row < tokens.size(); ++row) {
    if (token_table.data != nullptr) {
      AddTo(token_table.data + tokens[row] * width, output_gradient, width);
    }
    if (position_table.data != nullptr) {
      AddTo(position_table.data + static_cast<int64_t>(row) % context * width, output_gradient,
            width);
    }
    output_gradient += width;
  }
}

}  // namespace tessera
