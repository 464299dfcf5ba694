// The layers of a GPT-2, forward and backward in float32, over memory that the caller owns. Every
// matrix is row-major; rows = sequences x context, one row a token.
//
//   TESSERA_ASSIGN_OR_RETURN(LinearLayer fc,
//                            LinearLayer::Create({.rows = 768, .in = 128, .out = 512}));
//   TESSERA_RETURN_IF_ERROR(fc.Forward(input, weight, bias, output));
//   TESSERA_RETURN_IF_ERROR(
//       fc.BackwardParameters(input, output_gradient, {weight_gradient}, {bias_gradient}));
//
// A layer holds compiled kernels of one shape and no parameters: the blocks of a model share one of
// each kind. Errors are those of onednn_kernel.h. Thread-safety: one thread at a time. Layers are
// moved, not copied.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_LAYERS_H_
#define TESSERA_WORKER_WORKLOADS_GPT_LAYERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/workloads/onednn_kernel.h"

namespace tessera {

// Where a parameter's gradient goes. Null: it is not wanted.
struct GradientTarget {
  float* data = nullptr;
  bool accumulate = false;  // true: add to what is there
};

// output [rows, out] = input [rows, in] x weight + bias.
class LinearLayer {
 public:
  struct Options {
    int64_t rows = 0;
    int64_t in = 0;
    int64_t out = 0;
    WeightOrder order = WeightOrder::kInOut;
    bool has_bias = true;
  };
  static absl::StatusOr<LinearLayer> Create(const Options& options);

  // `bias` is ignored without has_bias, here and below.
  absl::Status Forward(const float* input, const float* weight, const float* bias, float* output);
  absl::Status BackwardInput(const float* weight, const float* output_gradient,
                             float* input_gradient);
  absl::Status BackwardParameters(const float* input, const float* output_gradient,
                                  GradientTarget weight, GradientTarget bias);

  int64_t weight_numel() const { return options_.in * options_.out; }
  int64_t bias_numel() const { return options_.out; }

 private:
  LinearLayer(const Options& options, LinearKernels kernels);

  Options options_;
  LinearKernels kernels_;
  std::vector<float> weight_scratch_;  // allocated when a gradient is first accumulated
  std::vector<float> bias_scratch_;
};

// Normalises each row to mean 0 and variance 1, then scales and shifts. epsilon 1e-5.
class LayerNormLayer {
 public:
  static absl::StatusOr<LayerNormLayer> Create(int64_t rows, int64_t width);

  // `mean` and `variance` [rows] are kept for the backward.
  absl::Status Forward(const float* input, const float* weight, const float* bias, float* output,
                       float* mean, float* variance);
  absl::Status Backward(const float* input, const float* weight, const float* bias,
                        const float* mean, const float* variance, const float* output_gradient,
                        float* input_gradient, GradientTarget weight_gradient,
                        GradientTarget bias_gradient);

 private:
  LayerNormLayer(int64_t width, LayerNormKernels kernels);

  int64_t width_;
  LayerNormKernels kernels_;
  std::vector<float> scratch_;  // weight's, then bias's gradient
};

// Causal multi-head attention without its two projections.
class AttentionLayer {
 public:
  struct Shape {
    int64_t sequences = 0;
    int64_t context = 0;
    int64_t heads = 0;
    int64_t head_width = 0;
  };
  // What the forward keeps. query (already divided by the square root of head_width), key and value
  // are [sequences, heads, context, head_width]; probabilities [sequences, heads, context,
  // context], 0 above the diagonal.
  struct Activations {
    float* query = nullptr;
    float* key = nullptr;
    float* value = nullptr;
    float* probabilities = nullptr;
  };
  // Memory that the backward needs, of the same shapes.
  using Scratch = Activations;

  static absl::StatusOr<AttentionLayer> Create(const Shape& shape);

  // qkv [rows, 3 x width]: query, key and value of every head. output [rows, width].
  // `heads_scratch` as query.
  absl::Status Forward(const float* qkv, const Activations& activations, float* heads_scratch,
                       float* output);
  absl::Status Backward(const float* output_gradient, const Activations& activations,
                        const Scratch& scratch, float* heads_scratch, float* qkv_gradient);

 private:
  explicit AttentionLayer(const Shape& shape) : shape_(shape) {}

  Shape shape_;
  KernelPtr scores_;               // [T, D] x [T, D]^T -> [T, T]
  KernelPtr weighted_;             // [T, T] x [T, D]
  KernelPtr weighted_transposed_;  // [T, T]^T x [T, D]
  KernelPtr softmax_;
};

// Softmax and cross-entropy over the vocabulary. A target below 0 is a token that does not count.
class CrossEntropyLayer {
 public:
  static absl::StatusOr<CrossEntropyLayer> Create(int64_t rows, int64_t vocab);

  // Replaces logits [rows, vocab] by their log-probabilities. Returns the sum of -log p(target) in
  // nats.
  absl::StatusOr<double> Forward(float* logits, absl::Span<const int32_t> targets);
  // Replaces the log-probabilities by scale x the gradient of that sum by the logits.
  absl::Status Backward(float* log_probabilities, absl::Span<const int32_t> targets, float scale);

 private:
  CrossEntropyLayer(int64_t vocab, KernelPtr log_softmax, KernelPtr exp);

  int64_t vocab_;
  KernelPtr log_softmax_;
  KernelPtr exp_;
};

// output row = token_table[token] + position_table[place in the sequence].
void EmbeddingForward(absl::Span<const int32_t> tokens, int64_t context, int64_t width,
                      const float* token_table, const float* position_table, float* output);
// Rows of token_table that no token uses get 0. `vocab` and `context` are the tables' rows.
void EmbeddingBackward(absl::Span<const int32_t> tokens, int64_t context, int64_t vocab,
                       int64_t width, const float* output_gradient, GradientTarget token_table,
                       GradientTarget position_table);

// a += b.
void AddTo(float* a, const float* b, int64_t numel);

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_LAYERS_H_
