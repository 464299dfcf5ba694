// T5: an encoder, a decoder or both around one embedding. The first block of each stack has the
// relative attention bias of all of its blocks.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json_document.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_families.h"

namespace tessera {
namespace {

struct T5 {
  int64_t vocab = 1;
  int64_t model = 1;
  int64_t inner = 1;  // heads x d_kv
  int64_t feed_forward = 1;
  int64_t heads = 1;
  int64_t buckets = 32;
  int64_t encoder_layers = 1;
  int64_t decoder_layers = 1;
  int64_t labels = 2;
  bool gated = false;
  bool tied = true;
  std::string activation;
};

// "relu", "gated-gelu": an activation, and whether a second projection gates it.
void ReadFeedForward(HfReader* config, T5* t5) {
  const char* key = "feed_forward_proj";
  const std::string text = config->Text(key, "relu");
  const std::vector<std::string> parts = absl::StrSplit(text, '-');
  t5->gated = parts[0] == "gated";
  if (parts.size() > 2 || (parts.size() == 2 && !t5->gated)) {
    config->Fault(key, absl::StrCat("is \"", ShortAscii(text),
                                    "\"; give an activation, or gated- and an activation"));
    return;
  }
  // For backward compatibility transformers reads gelu as gelu_new where it is gated.
  t5->activation = text == "gated-gelu" ? config->ActivationClass(key, "gelu_new")
                                        : config->ActivationClass(key, parts.back());
}

T5 Read(HfReader* config) {
  T5 t5;
  t5.vocab = config->Size("vocab_size");
  t5.model = config->Size("d_model");
  t5.heads = config->Size("num_heads");
  t5.inner = t5.heads * config->Size("d_kv");
  t5.feed_forward = config->Size("d_ff");
  t5.buckets = config->Size("relative_attention_num_buckets", kMaxHfSize, 32);
  t5.encoder_layers = config->Size("num_layers", kMaxHfLayers);
  t5.decoder_layers = config->Size("num_decoder_layers", kMaxHfLayers, t5.encoder_layers);
  t5.labels = config->Labels();
  t5.tied = config->Flag("tie_word_embeddings", true);
  ReadFeedForward(config, &t5);
  return t5;
}

void AddAttention(const T5& t5, const HfModules& make, v1::Module* layer, absl::string_view name,
                  bool bias) {
  v1::Module* attention = make.Module(layer, name, "T5Attention");
  for (const char* part : {"q", "k", "v"}) {
    make.Linear(attention, part, t5.model, t5.inner, /*bias=*/false);
  }
  make.Linear(attention, "o", t5.inner, t5.model, /*bias=*/false);
  if (bias) make.Embedding(attention, "relative_attention_bias", t5.buckets, t5.heads);
}

void AddFeedForward(const T5& t5, const HfModules& make, v1::Module* layer) {
  v1::Module* dense =
      make.Module(layer, "DenseReluDense", t5.gated ? "T5DenseGatedActDense" : "T5DenseActDense");
  if (t5.gated) {
    make.Linear(dense, "wi_0", t5.model, t5.feed_forward, /*bias=*/false);
    make.Linear(dense, "wi_1", t5.model, t5.feed_forward, /*bias=*/false);
  } else {
    make.Linear(dense, "wi", t5.model, t5.feed_forward, /*bias=*/false);
  }
  make.Linear(dense, "wo", t5.feed_forward, t5.model, /*bias=*/false);
  make.Dropout(dense, "dropout");
  make.Module(dense, "act", t5.activation);
}

// The end of each layer of a block.
void AddNorm(const T5& t5, const HfModules& make, v1::Module* layer) {
  make.RmsNorm(layer, "layer_norm", "T5LayerNorm", t5.model);
  make.Dropout(layer, "dropout");
}

void AddBlock(const T5& t5, const HfModules& make, v1::Module* blocks, int64_t index,
              bool decoder) {
  v1::Module* block =
      make.Module(blocks, absl::StrCat(index), "T5Block", {"GradientCheckpointingLayer"});
  v1::Module* layers = make.List(block, "layer");
  v1::Module* self = make.Module(layers, "0", "T5LayerSelfAttention");
  AddAttention(t5, make, self, "SelfAttention", /*bias=*/index == 0);
  AddNorm(t5, make, self);
  if (decoder) {
    v1::Module* cross = make.Module(layers, "1", "T5LayerCrossAttention");
    AddAttention(t5, make, cross, "EncDecAttention", /*bias=*/false);
    AddNorm(t5, make, cross);
  }
  v1::Module* last = make.Module(layers, decoder ? "2" : "1", "T5LayerFF");
  AddFeedForward(t5, make, last);
  AddNorm(t5, make, last);
}

void AddStack(const T5& t5, const HfModules& make, v1::Module* model, absl::string_view shared,
              bool decoder) {
  v1::Module* stack = make.Module(model, decoder ? "decoder" : "encoder", "T5Stack",
                                  {"T5PreTrainedModel", "PreTrainedModel"});
  make.Alias(stack, "embed_tokens", shared);
  v1::Module* blocks = make.List(stack, "block");
  const int64_t count = decoder ? t5.decoder_layers : t5.encoder_layers;
  for (int64_t i = 0; i < count; ++i) AddBlock(t5, make, blocks, i, decoder);
  make.RmsNorm(stack, "final_layer_norm", "T5LayerNorm", t5.model);
  make.Dropout(stack, "dropout");
}

// The embedding and the stacks, in a module whose FQN is `fqn`.
void FillModel(const T5& t5, const HfModules& make, v1::Module* model, absl::string_view fqn,
               bool decoder) {
  const std::string shared = JoinFqn(fqn, "shared");
  make.Embedding(model, "shared", t5.vocab, t5.model);
  AddStack(t5, make, model, shared, /*decoder=*/false);
  if (decoder) AddStack(t5, make, model, shared, /*decoder=*/true);
}

absl::Status BuildT5(HfReader* config, absl::string_view architecture, const HfModules& make,
                     v1::Module* root) {
  const T5 t5 = Read(config);
  TESSERA_RETURN_IF_ERROR(config->status());
  const HfModules::Names bases = {"T5PreTrainedModel", "PreTrainedModel"};
  make.SetClass(root, architecture, bases);
  if (architecture == "T5ForSequenceClassification") {
    FillModel(t5, make, make.Module(root, "transformer", "T5Model", bases), "transformer", true);
    v1::Module* head = make.Module(root, "classification_head", "T5ClassificationHead");
    make.Linear(head, "dense", t5.model, t5.model, /*bias=*/true);
    make.Dropout(head, "dropout");
    make.Linear(head, "out_proj", t5.model, t5.labels, /*bias=*/true);
    return absl::OkStatus();
  }
  if (architecture == "T5ForTokenClassification") {
    FillModel(t5, make, make.Module(root, "transformer", "T5EncoderModel", bases), "transformer",
              false);
    make.Dropout(root, "dropout");
    make.Linear(root, "classifier", t5.model, t5.labels, /*bias=*/true);
    return absl::OkStatus();
  }
  FillModel(t5, make, root, "", architecture != "T5EncoderModel");
  if (architecture == "T5ForConditionalGeneration") {
    v1::Module* head = make.Linear(root, "lm_head", t5.model, t5.vocab, /*bias=*/false);
    if (t5.tied) head->mutable_parameters(0)->set_tied_to("shared.weight");
  } else if (architecture == "T5ForQuestionAnswering") {
    make.Linear(root, "qa_outputs", t5.model, t5.labels, /*bias=*/true);
  }
  return absl::OkStatus();
}

}  // namespace

HfFamily T5Family() {
  return {"t5",
          {"T5ForConditionalGeneration", "T5Model", "T5EncoderModel", "T5ForSequenceClassification",
           "T5ForTokenClassification", "T5ForQuestionAnswering"},
          BuildT5};
}

}  // namespace tessera
