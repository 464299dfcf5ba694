// Llama and the families that differ from it in biases and experts: Mistral, Mixtral, Qwen2.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_families.h"

namespace tessera {
namespace {

struct Decoder {
  std::string prefix;  // of its classes
  int64_t vocab = 1;
  int64_t hidden = 1;
  int64_t intermediate = 1;
  int64_t layers = 1;
  int64_t heads = 1;
  int64_t key_value_heads = 1;
  int64_t head_dim = 1;
  int64_t frequencies = 1;  // of the rotary embedding
  int64_t experts = 0;      // 0: one MLP
  int64_t labels = 2;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool tied = false;
  std::string activation;
};

// `key_value_heads`: where the config has none; 0: as many as heads.
Decoder Read(HfReader* config, const char* prefix, int64_t key_value_heads) {
  Decoder decoder;
  decoder.prefix = prefix;
  decoder.vocab = config->Size("vocab_size");
  decoder.hidden = config->Size("hidden_size");
  decoder.intermediate = config->Size("intermediate_size");
  decoder.layers = config->Size("num_hidden_layers", kMaxHfLayers);
  decoder.heads = config->Size("num_attention_heads");
  decoder.key_value_heads = config->Size("num_key_value_heads", kMaxHfSize,
                                         key_value_heads == 0 ? decoder.heads : key_value_heads);
  config->Divide(decoder.heads, "num_attention_heads", decoder.key_value_heads,
                 "num_key_value_heads");
  decoder.head_dim = config->Has("head_dim") ? config->Size("head_dim")
                                             : config->Divide(decoder.hidden, "hidden_size",
                                                              decoder.heads, "num_attention_heads");
  const double rotary = config->Fraction("partial_rotary_factor", 1);
  const auto dimensions = static_cast<int64_t>(static_cast<double>(decoder.head_dim) * rotary);
  decoder.frequencies = (dimensions + 1) / 2;
  decoder.labels = config->Labels();
  decoder.tied = config->Flag("tie_word_embeddings", false);
  decoder.activation = config->Activation("hidden_act", "silu");
  return decoder;
}

void AddAttention(const Decoder& decoder, const HfModules& make, v1::Module* layer) {
  v1::Module* attention =
      make.Module(layer, "self_attn", absl::StrCat(decoder.prefix, "Attention"));
  const int64_t all = decoder.heads * decoder.head_dim;
  const int64_t grouped = decoder.key_value_heads * decoder.head_dim;
  make.Linear(attention, "q_proj", decoder.hidden, all, decoder.qkv_bias);
  make.Linear(attention, "k_proj", decoder.hidden, grouped, decoder.qkv_bias);
  make.Linear(attention, "v_proj", decoder.hidden, grouped, decoder.qkv_bias);
  make.Linear(attention, "o_proj", all, decoder.hidden, decoder.output_bias);
}

void AddMlp(const Decoder& decoder, const HfModules& make, v1::Module* layer) {
  v1::Module* mlp = make.Module(layer, "mlp", absl::StrCat(decoder.prefix, "MLP"));
  make.Linear(mlp, "gate_proj", decoder.hidden, decoder.intermediate, decoder.mlp_bias);
  make.Linear(mlp, "up_proj", decoder.hidden, decoder.intermediate, decoder.mlp_bias);
  make.Linear(mlp, "down_proj", decoder.intermediate, decoder.hidden, decoder.mlp_bias);
  make.Module(mlp, "act_fn", decoder.activation);
}

void AddExperts(const Decoder& decoder, const HfModules& make, v1::Module* layer) {
  v1::Module* moe = make.Module(layer, "block_sparse_moe", "MixtralSparseMoeBlock");
  make.Linear(moe, "gate", decoder.hidden, decoder.experts, /*bias=*/false);
  v1::Module* experts = make.List(moe, "experts");
  for (int64_t i = 0; i < decoder.experts; ++i) {
    v1::Module* expert = make.Module(experts, absl::StrCat(i), "MixtralBlockSparseTop2MLP");
    make.Linear(expert, "w1", decoder.hidden, decoder.intermediate, /*bias=*/false);
    make.Linear(expert, "w2", decoder.intermediate, decoder.hidden, /*bias=*/false);
    make.Linear(expert, "w3", decoder.hidden, decoder.intermediate, /*bias=*/false);
    make.Module(expert, "act_fn", decoder.activation);
  }
}

// The model without a head.
void FillModel(const Decoder& decoder, const HfModules& make, v1::Module* model) {
  const std::string norm = absl::StrCat(decoder.prefix, "RMSNorm");
  make.Embedding(model, "embed_tokens", decoder.vocab, decoder.hidden);
  v1::Module* layers = make.List(model, "layers");
  for (int64_t i = 0; i < decoder.layers; ++i) {
    v1::Module* layer =
        make.Module(layers, absl::StrCat(i), absl::StrCat(decoder.prefix, "DecoderLayer"),
                    {"GradientCheckpointingLayer"});
    AddAttention(decoder, make, layer);
    if (decoder.experts > 0) {
      AddExperts(decoder, make, layer);
    } else {
      AddMlp(decoder, make, layer);
    }
    make.RmsNorm(layer, "input_layernorm", norm, decoder.hidden);
    make.RmsNorm(layer, "post_attention_layernorm", norm, decoder.hidden);
  }
  make.RmsNorm(model, "norm", norm, decoder.hidden);
  v1::Module* rotary =
      make.Module(model, "rotary_emb", absl::StrCat(decoder.prefix, "RotaryEmbedding"));
  make.Buffer(rotary, "inv_freq", {decoder.frequencies}, "float32");
}

void Fill(const Decoder& decoder, absl::string_view architecture, const HfModules& make,
          v1::Module* root) {
  const std::string pretrained = absl::StrCat(decoder.prefix, "PreTrainedModel");
  const std::string base = absl::StrCat(decoder.prefix, "Model");
  if (architecture == base) {
    make.SetClass(root, base, {pretrained, "PreTrainedModel"});
    FillModel(decoder, make, root);
    return;
  }
  absl::string_view task = architecture;
  task.remove_prefix(decoder.prefix.size());
  if (task == "ForCausalLM") {
    make.SetClass(root, architecture, {pretrained, "PreTrainedModel"});
  } else {
    make.SetClass(root, architecture,
                  {absl::StrCat("Generic", task), pretrained, "PreTrainedModel"});
  }
  // Question answering kept an older name in the families that are in `transformers` longest.
  const bool older = decoder.prefix == "Llama" || decoder.prefix == "Qwen2";
  const char* name = task == "ForQuestionAnswering" && older ? "transformer" : "model";
  FillModel(decoder, make, make.Module(root, name, base, {pretrained, "PreTrainedModel"}));
  if (task == "ForCausalLM") {
    v1::Module* head = make.Linear(root, "lm_head", decoder.hidden, decoder.vocab, /*bias=*/false);
    if (decoder.tied) head->mutable_parameters(0)->set_tied_to("model.embed_tokens.weight");
  } else if (task == "ForSequenceClassification") {
    make.Linear(root, "score", decoder.hidden, decoder.labels, /*bias=*/false);
  } else if (task == "ForTokenClassification") {
    make.Dropout(root, "dropout");
    make.Linear(root, "score", decoder.hidden, decoder.labels, /*bias=*/true);
  } else {
    make.Linear(root, "qa_outputs", decoder.hidden, 2, /*bias=*/true);
  }
}

absl::Status BuildLlama(HfReader* config, absl::string_view architecture, const HfModules& make,
                        v1::Module* root) {
  Decoder decoder = Read(config, "Llama", 0);
  decoder.qkv_bias = decoder.output_bias = config->Flag("attention_bias", false);
  decoder.mlp_bias = config->Flag("mlp_bias", false);
  TESSERA_RETURN_IF_ERROR(config->status());
  Fill(decoder, architecture, make, root);
  return absl::OkStatus();
}

absl::Status BuildMistral(HfReader* config, absl::string_view architecture, const HfModules& make,
                          v1::Module* root) {
  const Decoder decoder = Read(config, "Mistral", 8);
  TESSERA_RETURN_IF_ERROR(config->status());
  Fill(decoder, architecture, make, root);
  return absl::OkStatus();
}

absl::Status BuildMixtral(HfReader* config, absl::string_view architecture, const HfModules& make,
                          v1::Module* root) {
  Decoder decoder = Read(config, "Mixtral", 8);
  // The bound is on all layers together, so that none of the two keys can ask for too much alone.
  decoder.experts = config->Size("num_local_experts", kMaxHfExperts / decoder.layers, 8);
  TESSERA_RETURN_IF_ERROR(config->status());
  Fill(decoder, architecture, make, root);
  return absl::OkStatus();
}

absl::Status BuildQwen2(HfReader* config, absl::string_view architecture, const HfModules& make,
                        v1::Module* root) {
  Decoder decoder = Read(config, "Qwen2", 32);
  decoder.qkv_bias = true;
  TESSERA_RETURN_IF_ERROR(config->status());
  Fill(decoder, architecture, make, root);
  return absl::OkStatus();
}

}  // namespace

HfFamily LlamaFamily() {
  return {"llama",
          {"LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification",
           "LlamaForTokenClassification", "LlamaForQuestionAnswering"},
          BuildLlama};
}

HfFamily MistralFamily() {
  return {"mistral",
          {"MistralForCausalLM", "MistralModel", "MistralForSequenceClassification",
           "MistralForTokenClassification", "MistralForQuestionAnswering"},
          BuildMistral};
}

HfFamily MixtralFamily() {
  return {"mixtral",
          {"MixtralForCausalLM", "MixtralModel", "MixtralForSequenceClassification",
           "MixtralForTokenClassification", "MixtralForQuestionAnswering"},
          BuildMixtral};
}

HfFamily Qwen2Family() {
  return {"qwen2",
          {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification",
           "Qwen2ForTokenClassification", "Qwen2ForQuestionAnswering"},
          BuildQwen2};
}

}  // namespace tessera
