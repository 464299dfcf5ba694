// BERT: an encoder with a pooler, a head, or both, as the architecture says.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_families.h"

namespace tessera {
namespace {

struct Bert {
  int64_t vocab = 1;
  int64_t positions = 1;
  int64_t types = 2;
  int64_t hidden = 1;
  int64_t head_dim = 1;
  int64_t intermediate = 1;
  int64_t layers = 1;
  int64_t labels = 2;
  bool relative = false;  // positions
  bool cross_attention = false;
  bool tied = true;
  std::string activation;
};

Bert Read(HfReader* config) {
  Bert bert;
  bert.vocab = config->Size("vocab_size");
  bert.positions = config->Size("max_position_embeddings");
  bert.types = config->Size("type_vocab_size", kMaxHfSize, 2);
  bert.hidden = config->Size("hidden_size");
  bert.head_dim = config->Divide(bert.hidden, "hidden_size", config->Size("num_attention_heads"),
                                 "num_attention_heads");
  bert.intermediate = config->Size("intermediate_size");
  bert.layers = config->Size("num_hidden_layers", kMaxHfLayers);
  bert.labels = config->Labels();
  const std::string kind = config->Text("position_embedding_type", "absolute");
  bert.relative = kind == "relative_key" || kind == "relative_key_query";
  if (!bert.relative && kind != "absolute") {
    config->Fault(
        "position_embedding_type",
        absl::StrCat("is \"", kind, "\"; use absolute, relative_key or relative_key_query"));
  }
  bert.cross_attention = config->Flag("add_cross_attention", false);
  if (bert.cross_attention && !config->Flag("is_decoder", false)) {
    config->Fault("add_cross_attention", "is true and is_decoder is not; set both or none");
  }
  bert.tied = config->Flag("tie_word_embeddings", true);
  bert.activation = config->Activation("hidden_act", "gelu");
  return bert;
}

// BertSelfOutput and BertOutput.
void AddOutput(const Bert& bert, const HfModules& make, v1::Module* parent,
               absl::string_view class_name, int64_t in) {
  v1::Module* output = make.Module(parent, "output", class_name);
  make.Linear(output, "dense", in, bert.hidden, /*bias=*/true);
  make.LayerNorm(output, "LayerNorm", bert.hidden);
  make.Dropout(output, "dropout");
}

void AddAttention(const Bert& bert, const HfModules& make, v1::Module* layer,
                  absl::string_view name, bool relative) {
  v1::Module* attention = make.Module(layer, name, "BertAttention");
  v1::Module* self = make.Module(attention, "self", "BertSdpaSelfAttention", {"BertSelfAttention"});
  for (const char* part : {"query", "key", "value"}) {
    make.Linear(self, part, bert.hidden, bert.hidden, /*bias=*/true);
  }
  make.Dropout(self, "dropout");
  if (relative) {
    make.Embedding(self, "distance_embedding", 2 * bert.positions - 1, bert.head_dim);
  }
  AddOutput(bert, make, attention, "BertSelfOutput", bert.hidden);
}

void AddLayer(const Bert& bert, const HfModules& make, v1::Module* layers, int64_t index) {
  v1::Module* layer =
      make.Module(layers, absl::StrCat(index), "BertLayer", {"GradientCheckpointingLayer"});
  AddAttention(bert, make, layer, "attention", bert.relative);
  if (bert.cross_attention) {
    AddAttention(bert, make, layer, "crossattention", /*relative=*/false);
  }
  v1::Module* intermediate = make.Module(layer, "intermediate", "BertIntermediate");
  make.Linear(intermediate, "dense", bert.hidden, bert.intermediate, /*bias=*/true);
  make.Module(intermediate, "intermediate_act_fn", bert.activation);
  AddOutput(bert, make, layer, "BertOutput", bert.intermediate);
}

void FillModel(const Bert& bert, const HfModules& make, v1::Module* model, bool pooler) {
  v1::Module* embeddings = make.Module(model, "embeddings", "BertEmbeddings");
  make.Buffer(embeddings, "position_ids", {1, bert.positions}, "int64");
  make.Buffer(embeddings, "token_type_ids", {1, bert.positions}, "int64");
  make.Embedding(embeddings, "word_embeddings", bert.vocab, bert.hidden);
  make.Embedding(embeddings, "position_embeddings", bert.positions, bert.hidden);
  make.Embedding(embeddings, "token_type_embeddings", bert.types, bert.hidden);
  make.LayerNorm(embeddings, "LayerNorm", bert.hidden);
  make.Dropout(embeddings, "dropout");
  v1::Module* layers = make.List(make.Module(model, "encoder", "BertEncoder"), "layer");
  for (int64_t i = 0; i < bert.layers; ++i) AddLayer(bert, make, layers, i);
  if (!pooler) return;
  v1::Module* pool = make.Module(model, "pooler", "BertPooler");
  make.Linear(pool, "dense", bert.hidden, bert.hidden, /*bias=*/true);
  make.Module(pool, "activation", "Tanh");
}

// cls.predictions: its bias is registered first and used again by the decoder.
void AddPredictions(const Bert& bert, const HfModules& make, v1::Module* cls) {
  v1::Module* predictions = make.Module(cls, "predictions", "BertLMPredictionHead");
  make.Parameter(predictions, "bias", {bert.vocab}, "zeros");
  v1::Module* transform = make.Module(predictions, "transform", "BertPredictionHeadTransform");
  make.Linear(transform, "dense", bert.hidden, bert.hidden, /*bias=*/true);
  make.Module(transform, "transform_act_fn", bert.activation);
  make.LayerNorm(transform, "LayerNorm", bert.hidden);
  v1::Module* decoder = make.Linear(predictions, "decoder", bert.hidden, bert.vocab, /*bias=*/true);
  if (bert.tied) {
    decoder->mutable_parameters(0)->set_tied_to("bert.embeddings.word_embeddings.weight");
  }
  decoder->mutable_parameters(1)->set_tied_to("cls.predictions.bias");
}

void AddHead(const Bert& bert, absl::string_view architecture, const HfModules& make,
             v1::Module* root) {
  if (architecture == "BertForPreTraining") {
    v1::Module* cls = make.Module(root, "cls", "BertPreTrainingHeads");
    AddPredictions(bert, make, cls);
    make.Linear(cls, "seq_relationship", bert.hidden, 2, /*bias=*/true);
  } else if (architecture == "BertForMaskedLM" || architecture == "BertLMHeadModel") {
    AddPredictions(bert, make, make.Module(root, "cls", "BertOnlyMLMHead"));
  } else if (architecture == "BertForNextSentencePrediction") {
    make.Linear(make.Module(root, "cls", "BertOnlyNSPHead"), "seq_relationship", bert.hidden, 2,
                /*bias=*/true);
  } else if (architecture == "BertForQuestionAnswering") {
    make.Linear(root, "qa_outputs", bert.hidden, bert.labels, /*bias=*/true);
  } else {
    make.Dropout(root, "dropout");
    const bool choice = architecture == "BertForMultipleChoice";
    make.Linear(root, "classifier", bert.hidden, choice ? 1 : bert.labels, /*bias=*/true);
  }
}

absl::Status BuildBert(HfReader* config, absl::string_view architecture, const HfModules& make,
                       v1::Module* root) {
  const Bert bert = Read(config);
  TESSERA_RETURN_IF_ERROR(config->status());
  const HfModules::Names bases = {"BertPreTrainedModel", "PreTrainedModel"};
  make.SetClass(root, architecture, bases);
  if (architecture == "BertModel") {
    FillModel(bert, make, root, /*pooler=*/true);
    return absl::OkStatus();
  }
  const bool pooler =
      architecture == "BertForPreTraining" || architecture == "BertForNextSentencePrediction" ||
      architecture == "BertForSequenceClassification" || architecture == "BertForMultipleChoice";
  FillModel(bert, make, make.Module(root, "bert", "BertModel", bases), pooler);
  AddHead(bert, architecture, make, root);
  return absl::OkStatus();
}

}  // namespace

HfFamily BertFamily() {
  return {"bert",
          {"BertModel", "BertForPreTraining", "BertLMHeadModel", "BertForMaskedLM",
           "BertForNextSentencePrediction", "BertForSequenceClassification",
           "BertForMultipleChoice", "BertForTokenClassification", "BertForQuestionAnswering"},
          BuildBert};
}

}  // namespace tessera
