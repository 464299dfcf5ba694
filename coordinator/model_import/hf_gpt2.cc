// GPT-2. Its linear layers are Conv1D, with the weight as [in, out].
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/model_import/hf_families.h"

namespace tessera {
namespace {

struct Gpt2 {
  int64_t vocab = 1;
  int64_t context = 1;
  int64_t width = 1;
  int64_t inner = 1;
  int64_t layers = 1;
  int64_t labels = 2;
  bool cross_attention = false;
  bool tied = true;
  std::string activation;
};

Gpt2 Read(HfReader* config) {
  Gpt2 gpt;
  gpt.vocab = config->Size("vocab_size");
  gpt.context = config->Size("n_positions");
  gpt.width = config->Size("n_embd");
  gpt.layers = config->Size("n_layer", kMaxHfLayers);
  config->Divide(gpt.width, "n_embd", config->Size("n_head"), "n_head");
  gpt.inner = config->Size("n_inner", kMaxHfSize, 4 * gpt.width);
  gpt.labels = config->Labels();
  gpt.cross_attention = config->Flag("add_cross_attention", false);
  gpt.tied = config->Flag("tie_word_embeddings", true);
  gpt.activation = config->Activation("activation_function", "gelu_new");
  return gpt;
}

void AddAttention(const Gpt2& gpt, const HfModules& make, v1::Module* block, absl::string_view name,
                  bool cross) {
  v1::Module* attention = make.Module(block, name, "GPT2Attention");
  make.Buffer(attention, "bias", {1, 1, gpt.context, gpt.context}, "bool");
  make.Buffer(attention, "masked_bias", {}, make.dtype());
  make.Conv1D(attention, "c_attn", gpt.width, (cross ? 2 : 3) * gpt.width);
  if (cross) make.Conv1D(attention, "q_attn", gpt.width, gpt.width);
  make.Conv1D(attention, "c_proj", gpt.width, gpt.width);
  make.Dropout(attention, "attn_dropout");
  make.Dropout(attention, "resid_dropout");
}

void AddBlock(const Gpt2& gpt, const HfModules& make, v1::Module* blocks, int64_t index) {
  v1::Module* block =
      make.Module(blocks, absl::StrCat(index), "GPT2Block", {"GradientCheckpointingLayer"});
  make.LayerNorm(block, "ln_1", gpt.width);
  AddAttention(gpt, make, block, "attn", /*cross=*/false);
  make.LayerNorm(block, "ln_2", gpt.width);
  if (gpt.cross_attention) {
    AddAttention(gpt, make, block, "crossattention", /*cross=*/true);
    make.LayerNorm(block, "ln_cross_attn", gpt.width);
  }
  v1::Module* mlp = make.Module(block, "mlp", "GPT2MLP");
  make.Conv1D(mlp, "c_fc", gpt.width, gpt.inner);
  make.Conv1D(mlp, "c_proj", gpt.inner, gpt.width);
  make.Module(mlp, "act", gpt.activation);
  make.Dropout(mlp, "dropout");
}

void FillModel(const Gpt2& gpt, const HfModules& make, v1::Module* model) {
  make.Embedding(model, "wte", gpt.vocab, gpt.width);
  make.Embedding(model, "wpe", gpt.context, gpt.width);
  make.Dropout(model, "drop");
  v1::Module* blocks = make.List(model, "h");
  for (int64_t i = 0; i < gpt.layers; ++i) AddBlock(gpt, make, blocks, i);
  make.LayerNorm(model, "ln_f", gpt.width);
}

absl::Status BuildGpt2(HfReader* config, absl::string_view architecture, const HfModules& make,
                       v1::Module* root) {
  const Gpt2 gpt = Read(config);
  TESSERA_RETURN_IF_ERROR(config->status());
  const HfModules::Names bases = {"GPT2PreTrainedModel", "PreTrainedModel"};
  make.SetClass(root, architecture, bases);
  if (architecture == "GPT2Model") {
    FillModel(gpt, make, root);
    return absl::OkStatus();
  }
  FillModel(gpt, make, make.Module(root, "transformer", "GPT2Model", bases));
  if (architecture == "GPT2LMHeadModel") {
    v1::Module* head = make.Linear(root, "lm_head", gpt.width, gpt.vocab, /*bias=*/false);
    if (gpt.tied) head->mutable_parameters(0)->set_tied_to("transformer.wte.weight");
  } else if (architecture == "GPT2ForSequenceClassification") {
    make.Linear(root, "score", gpt.width, gpt.labels, /*bias=*/false);
  } else if (architecture == "GPT2ForTokenClassification") {
    make.Dropout(root, "dropout");
    make.Linear(root, "classifier", gpt.width, gpt.labels, /*bias=*/true);
  } else {
    make.Linear(root, "qa_outputs", gpt.width, 2, /*bias=*/true);
  }
  return absl::OkStatus();
}

}  // namespace

HfFamily Gpt2Family() {
  return {"gpt2",
          {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification",
           "GPT2ForTokenClassification", "GPT2ForQuestionAnswering"},
          BuildGpt2};
}

}  // namespace tessera
