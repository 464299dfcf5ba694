#include "worker/workloads/gpt_reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::reference {
namespace {

constexpr double kEpsilon = 1e-5;

Values Sum(const Values& a, const Values& b) {
  Values sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

// d gelu / dx and gelu itself are written with u = sqrt(2 / pi) (x + 0.044715 x^3).
double GeluInner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

}  // namespace

Values Linear::Forward(const Values& x, const Values& w, const Values& b) const {
  Values y(rows * out);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = b.empty() ? 0 : b[o];
      for (int64_t i = 0; i < in; ++i) {
        sum += x[r * in + i] * (out_in ? w[o * in + i] : w[i * out + o]);
      }
      y[r * out + o] = sum;
    }
  }
  return y;
}

void Linear::Backward(const Values& x, const Values& w, const Values& dy, Values& dx, Values& dw,
                      Values& db) const {
  dx.assign(rows * in, 0);
  dw.assign(in * out, 0);
  db.assign(out, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      const double d = dy[r * out + o];
      db[o] += d;
      for (int64_t i = 0; i < in; ++i) {
        const int64_t at = out_in ? o * in + i : i * out + o;
        dx[r * in + i] += d * w[at];
        dw[at] += d * x[r * in + i];
      }
    }
  }
}

Values LayerNorm::Forward(const Values& x, const Values& w, const Values& b) const {
  Values y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = &x[r * width];
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width; ++i) mean += row[i] / width;
    for (int64_t i = 0; i < width; ++i) variance += (row[i] - mean) * (row[i] - mean) / width;
    for (int64_t i = 0; i < width; ++i) {
      y[r * width + i] = (row[i] - mean) / std::sqrt(variance + kEpsilon) * w[i] + b[i];
    }
  }
  return y;
}

void LayerNorm::Backward(const Values& x, const Values& w, const Values& dy, Values& dx, Values& dw,
                         Values& db) const {
  dx.assign(x.size(), 0);
  dw.assign(width, 0);
  db.assign(width, 0);
  const Values ones(width, 1), zeros(width, 0);
  const Values normalised = Forward(x, ones, zeros);
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = &x[r * width];
    double mean = 0, variance = 0, sum = 0, dot = 0;
    for (int64_t i = 0; i < width; ++i) mean += row[i] / width;
    for (int64_t i = 0; i < width; ++i) variance += (row[i] - mean) * (row[i] - mean) / width;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * width + i;
      dw[i] += dy[at] * normalised[at];
      db[i] += dy[at];
      sum += dy[at] * w[i] / width;
      dot += dy[at] * w[i] * normalised[at] / width;
    }
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = r * width + i;
      dx[at] = (dy[at] * w[i] - sum - normalised[at] * dot) / std::sqrt(variance + kEpsilon);
    }
  }
}

Values Attention::Probabilities(const Values& qkv, int64_t sequence, int64_t head,
                                int64_t query) const {
  const int64_t width = heads * head_width;
  const double* q = &qkv[(sequence * context + query) * 3 * width + head * head_width];
  Values p(query + 1);
  double greatest = -INFINITY;
  for (int64_t j = 0; j <= query; ++j) {
    const double* k = &qkv[(sequence * context + j) * 3 * width + width + head * head_width];
    for (int64_t i = 0; i < head_width; ++i) p[j] += q[i] * k[i] / std::sqrt(double(head_width));
    greatest = std::max(greatest, p[j]);
  }
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - greatest);
  for (double& value : p) value /= sum;
  return p;
}

Values Attention::Forward(const Values& qkv) const {
  const int64_t width = heads * head_width;
  Values y(sequences * context * width);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < context; ++t) {
        const Values p = Probabilities(qkv, s, h, t);
        for (int64_t j = 0; j <= t; ++j) {
          for (int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
            y[(s * context + t) * width + i] +=
                p[j] * qkv[(s * context + j) * 3 * width + 2 * width + i];
          }
        }
      }
    }
  }
  return y;
}

Values Attention::Backward(const Values& qkv, const Values& dy) const {
  const int64_t width = heads * head_width;
  const double factor = 1 / std::sqrt(double(head_width));
  Values d(qkv.size());
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < context; ++t) {
        const Values p = Probabilities(qkv, s, h, t);
        const int64_t query = (s * context + t) * 3 * width;
        Values dp(p.size());
        double dot = 0;
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (s * context + j) * 3 * width;
          for (int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
            const double out = dy[(s * context + t) * width + i];
            dp[j] += out * qkv[key + 2 * width + i];
            d[key + 2 * width + i] += out * p[j];
          }
          dot += p[j] * dp[j];
        }
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t key = (s * context + j) * 3 * width;
          const double ds = p[j] * (dp[j] - dot) * factor;
          for (int64_t i = h * head_width; i < (h + 1) * head_width; ++i) {
            d[query + i] += ds * qkv[key + width + i];
            d[key + width + i] += ds * qkv[query + i];
          }
        }
      }
    }
  }
  return d;
}

Values Gelu(const Values& x) {
  Values y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = 0.5 * x[i] * (1 + std::tanh(GeluInner(x[i])));
  return y;
}

Values GeluBackward(const Values& x, const Values& dy) {
  Values dx(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double t = std::tanh(GeluInner(x[i]));
    const double du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * du);
  }
  return dx;
}

double CrossEntropy(const Values& logits, const std::vector<int32_t>& targets, int64_t vocab,
                    double scale, Values* gradient) {
  double loss = 0;
  if (gradient != nullptr) gradient->assign(logits.size(), 0);
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] < 0) continue;
    const double* row = &logits[r * vocab];
    const double greatest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - greatest);
    loss -= row[targets[r]] - greatest - std::log(sum);
    if (gradient == nullptr) continue;
    for (int64_t i = 0; i < vocab; ++i) {
      (*gradient)[r * vocab + i] = scale * (std::exp(row[i] - greatest) / sum - (i == targets[r]));
    }
  }
  return loss;
}

namespace {

// What a block's forward leaves for its backward.
struct Kept {
  Values input, ln_1, qkv, attended, middle, ln_2, fc, gelu;
};

// The layers of a model's blocks.
struct Layers {
  explicit Layers(const GptShape& shape)
      : rows(shape.sequences * shape.context),
        norm{rows, shape.width},
        c_attn{rows, shape.width, 3 * shape.width},
        attn_proj{rows, shape.width, shape.width},
        c_fc{rows, shape.width, 4 * shape.width},
        mlp_proj{rows, 4 * shape.width, shape.width},
        head{rows, shape.width, shape.vocab, true},
        attention{shape.sequences, shape.context, shape.heads, shape.width / shape.heads} {}

  int64_t rows;
  LayerNorm norm;
  Linear c_attn, attn_proj, c_fc, mlp_proj, head;
  Attention attention;
};

using Block = std::array<Values, kBlockParameters>;

Values BlockForward(const Layers& layers, const Block& p, bool attention, Values x, Kept& k) {
  k.input = x;
  if (attention) {
    k.ln_1 = layers.norm.Forward(x, p[kLn1Weight], p[kLn1Bias]);
    k.qkv = layers.c_attn.Forward(k.ln_1, p[kAttnWeight], p[kAttnBias]);
    k.attended = layers.attention.Forward(k.qkv);
    x = Sum(x, layers.attn_proj.Forward(k.attended, p[kAttnProjWeight], p[kAttnProjBias]));
  }
  k.middle = x;
  k.ln_2 = layers.norm.Forward(x, p[kLn2Weight], p[kLn2Bias]);
  k.fc = layers.c_fc.Forward(k.ln_2, p[kFcWeight], p[kFcBias]);
  k.gelu = Gelu(k.fc);
  return Sum(x, layers.mlp_proj.Forward(k.gelu, p[kMlpProjWeight], p[kMlpProjBias]));
}

// From the gradient of the block's output to that of its input.
Values BlockBackward(const Layers& layers, const Block& p, bool attention, Values dx, const Kept& k,
                     Block& g) {
  Values t, through;
  layers.mlp_proj.Backward(k.gelu, p[kMlpProjWeight], dx, t, g[kMlpProjWeight], g[kMlpProjBias]);
  layers.c_fc.Backward(k.ln_2, p[kFcWeight], GeluBackward(k.fc, t), through, g[kFcWeight],
                       g[kFcBias]);
  layers.norm.Backward(k.middle, p[kLn2Weight], through, t, g[kLn2Weight], g[kLn2Bias]);
  dx = Sum(dx, t);
  if (!attention) return dx;
  layers.attn_proj.Backward(k.attended, p[kAttnProjWeight], dx, t, g[kAttnProjWeight],
                            g[kAttnProjBias]);
  layers.c_attn.Backward(k.ln_1, p[kAttnWeight], layers.attention.Backward(k.qkv, t), through,
                         g[kAttnWeight], g[kAttnBias]);
  layers.norm.Backward(k.input, p[kLn1Weight], through, t, g[kLn1Weight], g[kLn1Bias]);
  return Sum(dx, t);
}

}  // namespace

double Model::Run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                  double scale, Model* gradients) const {
  const Layers layers(shape);
  const int64_t c = shape.width;
  Values x(layers.rows * c);
  for (int64_t r = 0; r < layers.rows; ++r) {
    for (int64_t i = 0; i < c; ++i) {
      x[r * c + i] = root[kWte][tokens[r] * c + i] + root[kWpe][r % shape.context * c + i];
    }
  }
  std::vector<Kept> kept(blocks.size());
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    x = BlockForward(layers, blocks[layer], shape.attention, std::move(x), kept[layer]);
  }
  const Values last = layers.norm.Forward(x, root[kLnFWeight], root[kLnFBias]);
  const Values logits = layers.head.Forward(last, root[kWte], {});
  Values d;
  const double loss =
      CrossEntropy(logits, targets, shape.vocab, scale, gradients == nullptr ? nullptr : &d);
  if (gradients == nullptr) return loss;

  Values dx, t, no_bias;
  auto& dr = gradients->root;
  layers.head.Backward(last, root[kWte], d, t, dr[kWte], no_bias);
  layers.norm.Backward(x, root[kLnFWeight], t, dx, dr[kLnFWeight], dr[kLnFBias]);
  for (size_t layer = blocks.size(); layer-- > 0;) {
    dx = BlockBackward(layers, blocks[layer], shape.attention, std::move(dx), kept[layer],
                       gradients->blocks[layer]);
  }
  dr[kWpe].assign(shape.context * c, 0);
  for (int64_t r = 0; r < layers.rows; ++r) {
    for (int64_t i = 0; i < c; ++i) {
      dr[kWte][tokens[r] * c + i] += dx[r * c + i];
      dr[kWpe][r % shape.context * c + i] += dx[r * c + i];
    }
  }
  return loss;
}

}  // namespace tessera::reference
