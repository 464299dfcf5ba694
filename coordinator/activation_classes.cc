#include "coordinator/activation_classes.h"

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace tessera {
namespace {

const v1::Module* Child(const v1::Module& module, absl::string_view name) {
  for (const v1::Module& child : module.children()) {
    if (absl::string_view(child.name()) == name) return &child;
  }
  return nullptr;
}

// An extent of the parameter at `path` below the module; 0 where there is none.
int64_t Extent(const v1::Module& module, absl::string_view path, int dimension) {
  const std::vector<absl::string_view> names = absl::StrSplit(path, '.');
  const v1::Module* owner = &module;
  for (size_t i = 0; i + 1 < names.size() && owner != nullptr; ++i) owner = Child(*owner, names[i]);
  if (owner == nullptr) return 0;
  for (const v1::Parameter& parameter : owner->parameters()) {
    if (absl::string_view(parameter.name()) != names.back()) continue;
    return dimension < parameter.shape_size() ? parameter.shape(dimension) : 0;
  }
  return 0;
}

// `elements` of the compute dtype and `bytes` more for each token.
Footprint PerToken(const Pass& pass, double elements, double bytes, int64_t in, int64_t out) {
  const double rows = static_cast<double>(pass.rows());
  const double element_bytes = static_cast<double>(pass.element_bytes);
  return {.known = true,
          .bytes = rows * (elements * element_bytes + bytes),
          .input_bytes = rows * static_cast<double>(in) * element_bytes,
          .width = out};
}

bool AnyMissing(std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents) {
    if (extent == 0) return true;
  }
  return false;
}

double D(int64_t value) { return static_cast<double>(value); }

// The input, for the weight's gradient.
Footprint Linear(const v1::Module& module, const Pass& pass) {
  const int64_t out = Extent(module, "weight", 0);
  const int64_t in = Extent(module, "weight", 1);
  if (AnyMissing({in, out})) return {};
  return PerToken(pass, D(in), 0, in, out);
}

// GPT-2's linear layer has its weight the other way round.
Footprint Conv1D(const v1::Module& module, const Pass& pass) {
  const int64_t in = Extent(module, "weight", 0);
  const int64_t out = Extent(module, "weight", 1);
  if (AnyMissing({in, out})) return {};
  return PerToken(pass, D(in), 0, in, out);
}

// The indices, of 8 bytes.
Footprint Embedding(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "weight", 1);
  if (width == 0) return {};
  Footprint footprint = PerToken(pass, 0, 8, 0, width);
  footprint.input_bytes = footprint.bytes;
  return footprint;
}

// The input, mean and reciprocal deviation in float32.
Footprint LayerNorm(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "weight", 0);
  if (width == 0) return {};
  return PerToken(pass, D(width), 8, width, width);
}

Footprint RmsNorm(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "weight", 0);
  if (width == 0) return {};
  return PerToken(pass, D(width), 4, width, width);
}

// Input, query, key and value, output before the last projection.
Footprint MultiheadAttention(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "out_proj.weight", 0);
  if (width == 0) return {};
  return PerToken(pass, 5 * D(width), 0, width, width);
}

// A byte an element says which were dropped.
Footprint Dropout(const v1::Module& /*module*/, const Pass& pass) {
  if (pass.width == 0) return {};
  return PerToken(pass, 0, D(pass.width), pass.width, pass.width);
}

// The input of a function that works element by element.
Footprint Elementwise(const v1::Module& /*module*/, const Pass& pass) {
  if (pass.width == 0) return {};
  return PerToken(pass, D(pass.width), 0, pass.width, pass.width);
}

// The output, which is the next module's input and counted there.
Footprint Nothing(const v1::Module& /*module*/, const Pass& pass) {
  return PerToken(pass, 0, 0, pass.width, pass.width);
}

// llama, mistral, qwen2: norm, rotated query, key and value, attention's output, norm, then gate,
// its SiLU, up and their product. Names without the MLP are shared by mixtral.
double LlamaAttentionElements(const v1::Module& module, int64_t width) {
  const int64_t query = Extent(module, "self_attn.q_proj.weight", 0);
  const int64_t key = Extent(module, "self_attn.k_proj.weight", 0);
  return AnyMissing({query, key}) ? 0 : 4 * D(width) + 2 * D(query) + 2 * D(key);
}

Footprint LlamaBlock(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "input_layernorm.weight", 0);
  const int64_t inner = Extent(module, "mlp.gate_proj.weight", 0);
  const double attention = LlamaAttentionElements(module, width);
  if (AnyMissing({width, inner}) || attention == 0) return {};
  return PerToken(pass, attention + 4 * D(inner), 8, width, width);
}

// Two experts a token: each its input, the four of an MLP and its output; and the router's
// probabilities in float32.
Footprint MixtralBlock(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "input_layernorm.weight", 0);
  const int64_t experts = Extent(module, "block_sparse_moe.gate.weight", 0);
  const int64_t inner = Extent(module, "block_sparse_moe.experts.0.w1.weight", 0);
  const double attention = LlamaAttentionElements(module, width);
  if (AnyMissing({width, experts, inner}) || attention == 0) return {};
  const double moe = 2 * (2 * D(width) + 4 * D(inner));
  return PerToken(pass, attention + moe, 8 + 4 * D(experts), width, width);
}

// Norm, linear and attention inputs and GELU, with two dropout masks: 8C + 2F elements, 34 bytes x
// C in 16 bits where F is 4C (Korthikanti and others, 2022, without attention's scores).
Footprint GptLikeBlock(const Pass& pass, int64_t width, int64_t inner) {
  if (AnyMissing({width, inner})) return {};
  return PerToken(pass, 8 * D(width) + 2 * D(inner), 2 * D(width) + 16, width, width);
}

Footprint Gpt2Block(const v1::Module& module, const Pass& pass) {
  return GptLikeBlock(pass, Extent(module, "attn.c_attn.weight", 0),
                      Extent(module, "mlp.c_fc.weight", 1));
}

Footprint BertLayer(const v1::Module& module, const Pass& pass) {
  return GptLikeBlock(pass, Extent(module, "attention.self.query.weight", 1),
                      Extent(module, "intermediate.dense.weight", 0));
}

// Softmax, what is left of it after dropout, and the mask: heads of 64 features, as T5's are.
double T5ScoreBytes(const Pass& pass, int64_t inner) {
  const double heads = D(inner) / 64;
  return heads * D(pass.sequence) * (2 * D(pass.element_bytes) + 1);
}

Footprint T5Block(const v1::Module& module, const Pass& pass) {
  const int64_t inner = Extent(module, "layer.0.SelfAttention.q.weight", 0);
  const int64_t width = Extent(module, "layer.0.SelfAttention.q.weight", 1);
  const bool decoder = Extent(module, "layer.1.EncDecAttention.q.weight", 0) != 0;
  const std::string mlp = decoder ? "layer.2.DenseReluDense." : "layer.1.DenseReluDense.";
  const int64_t plain = Extent(module, mlp + "wi.weight", 0);
  const int64_t gated = Extent(module, mlp + "wi_0.weight", 0);
  if (AnyMissing({inner, width, plain + gated})) return {};
  // Norm, projections' input, query, key, value and output; the sub-layer's dropout mask.
  const int attentions = decoder ? 2 : 1;
  const double elements =
      attentions * (2 * D(width) + 4 * D(inner)) + 2 * D(width) + 2 * D(plain) + 5 * D(gated);
  const double bytes =
      attentions * (D(width) + 4 + T5ScoreBytes(pass, inner)) + D(width) + 4 + D(plain) + D(gated);
  return PerToken(pass, elements, bytes, width, width);
}

constexpr ClassFormula kFormulas[] = {
    {"Linear", Linear},
    {"NonDynamicallyQuantizableLinear", Linear},
    {"Conv1D", Conv1D},
    {"Embedding", Embedding},
    {"LayerNorm", LayerNorm},
    {"RMSNorm", RmsNorm},
    {"LlamaRMSNorm", RmsNorm},
    {"MistralRMSNorm", RmsNorm},
    {"MixtralRMSNorm", RmsNorm},
    {"Qwen2RMSNorm", RmsNorm},
    {"T5LayerNorm", RmsNorm},
    {"MultiheadAttention", MultiheadAttention},
    {"Dropout", Dropout},
    {"GELU", Elementwise},
    {"SiLU", Elementwise},
    {"NewGELUActivation", Elementwise},
    {"GELUActivation", Elementwise},
    {"ReLU", Nothing},
    {"Tanh", Nothing},
    {"Sigmoid", Nothing},
    {"Identity", Nothing},
    {"LlamaRotaryEmbedding", Nothing},
    {"MistralRotaryEmbedding", Nothing},
    {"MixtralRotaryEmbedding", Nothing},
    {"Qwen2RotaryEmbedding", Nothing},
    {"LlamaDecoderLayer", LlamaBlock},
    {"MistralDecoderLayer", LlamaBlock},
    {"Qwen2DecoderLayer", LlamaBlock},
    {"MixtralDecoderLayer", MixtralBlock},
    {"GPT2Block", Gpt2Block},
    {"Block", Gpt2Block},
    {"BertLayer", BertLayer},
    {"T5Block", T5Block},
    {"Sequential", nullptr},
    {"ModuleList", nullptr},
    {"ModuleDict", nullptr},
    {"Transformer", nullptr},
    {"TransformerEncoder", nullptr},
    {"TransformerDecoder", nullptr},
    {"TransformerEncoderLayer", nullptr},
    {"TransformerDecoderLayer", nullptr},
    {"GPT", nullptr},
    {"PreTrainedModel", nullptr},
    {"LlamaModel", nullptr},
    {"LlamaForCausalLM", nullptr},
    {"MistralModel", nullptr},
    {"MistralForCausalLM", nullptr},
    {"MixtralModel", nullptr},
    {"MixtralForCausalLM", nullptr},
    {"Qwen2Model", nullptr},
    {"Qwen2ForCausalLM", nullptr},
    {"GPT2Model", nullptr},
    {"GPT2LMHeadModel", nullptr},
    {"BertModel", nullptr},
    {"T5Stack", nullptr},
    {"BertOnlyMLMHead", nullptr},
    {"BertPreTrainingHeads", nullptr},
    {"BertLMPredictionHead", nullptr},
    {"BertPredictionHeadTransform", nullptr},
    {"BertEmbeddings", nullptr},
    {"BertEncoder", nullptr},
    {"BertPooler", nullptr},
};

const ClassFormula* ByName(absl::string_view name) {
  for (const ClassFormula& formula : kFormulas) {
    if (formula.class_name == name) return &formula;
  }
  return nullptr;
}

}  // namespace

const ClassFormula* FindFormula(const v1::Module& module) {
  if (const ClassFormula* formula = ByName(module.class_name())) return formula;
  for (const std::string& base : module.base_classes()) {
    if (const ClassFormula* formula = ByName(base)) return formula;
  }
  static constexpr ClassFormula kElementwise = {"", Elementwise};
  const bool bare = module.parameters().empty() && module.children().empty();
  return bare && module.same_as().empty() ? &kElementwise : nullptr;
}

}  // namespace tessera
