#include "coordinator/activation_classes.h"

#include <initializer_list>
#include <string>

#include "absl/strings/str_split.h"

namespace tessera {
namespace {

const v1::Module* Child(const v1::Module& module, absl::string_view name) {
  for (const v1::Module& child : module.children()) {
    if (absl::string_view(child.name()) == name) return &child;
  }
  return nullptr;
}

// The module at `path` below this one; null: there is none.
const v1::Module* Descendant(const v1::Module& module, absl::string_view path) {
  const v1::Module* found = &module;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (found != nullptr) found = Child(*found, name);
  }
  return found;
}

// An extent of the parameter at `path` below the module; 0 where there is none.
int64_t Extent(const v1::Module& module, absl::string_view path, int dimension) {
  const size_t dot = path.rfind('.');
  const bool below = dot != absl::string_view::npos;
  const v1::Module* owner = below ? Descendant(module, path.substr(0, dot)) : &module;
  if (owner == nullptr) return 0;
  const absl::string_view name = below ? path.substr(dot + 1) : path;
  for (const v1::Parameter& parameter : owner->parameters()) {
    if (absl::string_view(parameter.name()) != name) continue;
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

// Hugging Face's norms compute in float32: the input and its deviation there, and the normalised
// input before it is scaled.
Footprint LlamaRmsNorm(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "weight", 0);
  if (width == 0) return {};
  return PerToken(pass, D(width), 4 * D(width) + 4, width, width);
}

// As above, and the input as it came, if it came in another dtype.
Footprint T5Norm(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "weight", 0);
  if (width == 0) return {};
  const double elements = pass.element_bytes == 4 ? D(width) : 2 * D(width);
  return PerToken(pass, elements, 4 * D(width) + 4, width, width);
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

// llama, mistral, qwen2: two norms as LlamaRmsNorm and what they give, rotated query, key and value
// (key and value repeated for each query head) and attention's output, then gate, its SiLU, up and
// their product. Elements of all but the MLP, which mixtral has otherwise; 0: not such a block.
double LlamaAttentionElements(const v1::Module& module, int64_t width) {
  const int64_t query = Extent(module, "self_attn.q_proj.weight", 0);
  return query == 0 ? 0 : 4 * D(width) + 4 * D(query);
}

Footprint LlamaBlock(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "input_layernorm.weight", 0);
  const int64_t inner = Extent(module, "mlp.gate_proj.weight", 0);
  const double attention = LlamaAttentionElements(module, width);
  if (AnyMissing({width, inner}) || attention == 0) return {};
  return PerToken(pass, attention + 4 * D(inner), 8 * D(width) + 8, width, width);
}

// Two experts a token: each its input, the four of an MLP, its output and that weighted; the
// router's probabilities in float32 and 64 bytes of indices and weights.
Footprint MixtralBlock(const v1::Module& module, const Pass& pass) {
  const int64_t width = Extent(module, "input_layernorm.weight", 0);
  const int64_t experts = Extent(module, "block_sparse_moe.gate.weight", 0);
  const int64_t inner = Extent(module, "block_sparse_moe.experts.0.w1.weight", 0);
  const double attention = LlamaAttentionElements(module, width);
  if (AnyMissing({width, experts, inner}) || attention == 0) return {};
  const double moe = 2 * (3 * D(width) + 4 * D(inner));
  return PerToken(pass, attention + moe, 8 * D(width) + 8 + 4 * D(experts) + 64, width, width);
}

// GELU's tanh form, which is not one operation there but eight.
bool IsComposite(const v1::Module* activation) {
  return activation != nullptr && activation->class_name() == "NewGELUActivation";
}

// Norm, linear and attention inputs and GELU, with two dropout masks: 8C + 2F elements, 34 bytes x
// C in 16 bits where F is 4C (Korthikanti and others, 2022, without attention's scores).
Footprint GptLikeBlock(const Pass& pass, int64_t width, int64_t inner, bool composite) {
  if (AnyMissing({width, inner})) return {};
  return PerToken(pass, 8 * D(width) + (composite ? 5 : 2) * D(inner), 2 * D(width) + 16, width,
                  width);
}

Footprint Gpt2Block(const v1::Module& module, const Pass& pass) {
  const v1::Module* mlp = Child(module, "mlp");
  return GptLikeBlock(pass, Extent(module, "attn.c_attn.weight", 0),
                      Extent(module, "mlp.c_fc.weight", 1),
                      mlp != nullptr && IsComposite(Child(*mlp, "act")));
}

Footprint BertLayer(const v1::Module& module, const Pass& pass) {
  return GptLikeBlock(pass, Extent(module, "attention.self.query.weight", 1),
                      Extent(module, "intermediate.dense.weight", 0), /*composite=*/false);
}

// What a sub-layer of T5 keeps of its norm, and its dropout mask.
struct T5Sublayer {
  double elements, bytes;
};
T5Sublayer T5NormAndMask(const Pass& pass, int64_t width) {
  return {(pass.element_bytes == 4 ? 2 : 3) * D(width), 4 * D(width) + 4 + D(width)};
}

// Of a token: softmax in float32, what is left of it after dropout, and the mask, in heads of 64
// features, as T5's are.
double T5ScoreBytes(const Pass& pass, int64_t inner) {
  return D(inner) / 64 * D(pass.sequence) * (4 + D(pass.element_bytes) + 1);
}

Footprint T5Block(const v1::Module& module, const Pass& pass) {
  const int64_t inner = Extent(module, "layer.0.SelfAttention.q.weight", 0);
  const int64_t width = Extent(module, "layer.0.SelfAttention.q.weight", 1);
  const bool decoder = Extent(module, "layer.1.EncDecAttention.q.weight", 0) != 0;
  const std::string place = decoder ? "layer.2.DenseReluDense" : "layer.1.DenseReluDense";
  const int64_t plain = Extent(module, place + ".wi.weight", 0);
  const int64_t gated = Extent(module, place + ".wi_0.weight", 0);
  if (AnyMissing({inner, width, plain + gated})) return {};
  const bool composite = IsComposite(Descendant(module, place + ".act"));
  const int attentions = decoder ? 2 : 1;
  const T5Sublayer sublayer = T5NormAndMask(pass, width);
  // ReLU's output and what dropout leaves of it; or gate, its function, the other and what is left.
  const double mlp = plain > 0 ? 2 * D(plain) : (composite ? 7 : 4) * D(gated);
  const double elements = (attentions + 1) * sublayer.elements + attentions * 4 * D(inner) + mlp;
  const double bytes =
      (attentions + 1) * sublayer.bytes + attentions * T5ScoreBytes(pass, inner) + D(plain + gated);
  return PerToken(pass, elements, bytes, width, width);
}

constexpr ClassFormula kFormulas[] = {
    {"Linear", Linear},
    {"NonDynamicallyQuantizableLinear", Linear},
    {"Conv1D", Conv1D},
    {"Embedding", Embedding},
    {"LayerNorm", LayerNorm},
    {"RMSNorm", RmsNorm},
    {"LlamaRMSNorm", LlamaRmsNorm},
    {"MistralRMSNorm", LlamaRmsNorm},
    {"MixtralRMSNorm", LlamaRmsNorm},
    {"Qwen2RMSNorm", LlamaRmsNorm},
    {"T5LayerNorm", T5Norm},
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
