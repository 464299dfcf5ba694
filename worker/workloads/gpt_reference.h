// GPT-2 in plain loops of double precision, for tests: what gpt_layers.h and gpt_model.h are held
// against. Slow and short.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_REFERENCE_H_
#define TESSERA_WORKER_WORKLOADS_GPT_REFERENCE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "worker/workloads/gpt_model.h"

namespace tessera::reference {

using Values = std::vector<double>;

struct Linear {
  int64_t rows, in, out;
  bool out_in = false;                                                      // weight is [out, in]
  Values Forward(const Values& x, const Values& w, const Values& b) const;  // b may be empty
  // dx, dw and db are set.
  void Backward(const Values& x, const Values& w, const Values& dy, Values& dx, Values& dw,
                Values& db) const;
};

struct LayerNorm {
  int64_t rows, width;
  Values Forward(const Values& x, const Values& w, const Values& b) const;
  void Backward(const Values& x, const Values& w, const Values& dy, Values& dx, Values& dw,
                Values& db) const;
};

// From qkv [rows, 3 x width] to [rows, width].
struct Attention {
  int64_t sequences, context, heads, head_width;
  Values Forward(const Values& qkv) const;
  Values Backward(const Values& qkv, const Values& dy) const;

 private:
  // Of one query: over the positions it sees.
  Values Probabilities(const Values& qkv, int64_t sequence, int64_t head, int64_t query) const;
};

Values Gelu(const Values& x);
Values GeluBackward(const Values& x, const Values& dy);

// Sum over targets that are not negative; `gradient`, if given, becomes scale x its gradient.
double CrossEntropy(const Values& logits, const std::vector<int32_t>& targets, int64_t vocab,
                    double scale, Values* gradient);

struct Model {
  GptShape shape;
  std::array<Values, kRootParameters> root;
  std::vector<std::array<Values, kBlockParameters>> blocks;

  // The loss sum; with `gradients` also the gradients of scale x loss sum, in the same places.
  double Run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets, double scale,
             Model* gradients) const;
};

}  // namespace tessera::reference

#endif  // TESSERA_WORKER_WORKLOADS_GPT_REFERENCE_H_
