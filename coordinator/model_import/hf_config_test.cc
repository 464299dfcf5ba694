// What a config must have and what is refused; whole trees are compared in tests/golden/hf.
#include "coordinator/model_import/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/errors.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":50,"hidden_size":16,"intermediate_size":32,"num_hidden_layers":2,
        "num_attention_heads":4,"num_key_value_heads":2})";
constexpr char kT5[] =
    R"({"model_type":"t5","vocab_size":50,"d_model":16,"d_kv":4,"d_ff":32,"num_layers":2,"num_heads":4})";
constexpr char kBert[] =
    R"({"model_type":"bert","vocab_size":50,"hidden_size":16,"intermediate_size":32,"num_hidden_layers":1,
        "num_attention_heads":4,"max_position_embeddings":8})";

// The object `json` with `members` in front of its own.
std::string With(const std::string& json, const std::string& members) {
  return absl::StrCat("{", members, ",", json.substr(1));
}

std::string Replaced(absl::string_view json, absl::string_view from, absl::string_view to) {
  return absl::StrReplaceAll(json, {{from, to}});
}

int64_t Numel(const std::string& config) {
  const auto spec = ModelFromHfConfig(config, "config.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return 0;
  const auto index = ModelIndex::Create(*spec);
  int64_t numel = 0;
  for (const auto& parameter : index->parameters()) numel += parameter.numel;
  return numel;
}

std::string ErrorOf(const std::string& config) {
  const absl::Status status = ModelFromHfConfig(config, "config.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
  EXPECT_LT(status.message().size(), 600) << status;
  return std::string(status.message());
}

const v1::Module* Find(const v1::Module& root, const std::vector<std::string>& path) {
  const v1::Module* module = &root;
  for (const std::string& name : path) {
    const v1::Module* found = nullptr;
    for (const v1::Module& child : module->children()) {
      if (child.name() == name) found = &child;
    }
    if (found == nullptr) return nullptr;
    module = found;
  }
  return module;
}

std::string LlamaLike(const char* type, int hidden, int intermediate, int layers, int heads,
                      int groups, int vocab) {
  return absl::StrCat(R"({"model_type":")", type, R"(","hidden_size":)", hidden,
                      R"(,"intermediate_size":)", intermediate, R"(,"num_hidden_layers":)", layers,
                      R"(,"num_attention_heads":)", heads, R"(,"num_key_value_heads":)", groups,
                      R"(,"vocab_size":)", vocab, "}");
}

TEST(HfConfigTest, NumelsArePublishedTotals) {
  EXPECT_EQ(Numel(LlamaLike("llama", 16384, 53248, 126, 128, 8, 128256)), 405'853'388'800);
  EXPECT_EQ(Numel(LlamaLike("llama", 4096, 14336, 32, 32, 8, 128256)), 8'030'261'248);
  EXPECT_EQ(Numel(LlamaLike("mistral", 4096, 14336, 32, 32, 8, 32000)), 7'241'732'096);
  EXPECT_EQ(
      Numel(With(LlamaLike("mixtral", 4096, 14336, 32, 32, 8, 32000), R"("num_local_experts":8)")),
      46'702'792'704);
  EXPECT_EQ(Numel(With(LlamaLike("qwen2", 896, 4864, 24, 14, 2, 151936),
                       R"("tie_word_embeddings":true)")),
            494'032'768);
  EXPECT_EQ(
      Numel(
          R"({"model_type":"gpt2","vocab_size":50257,"n_positions":1024,"n_embd":768,"n_layer":12,"n_head":12})"),
      124'439'808);
  EXPECT_EQ(
      Numel(
          R"({"model_type":"bert","vocab_size":30522,"hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,
                      "num_attention_heads":12,"max_position_embeddings":512,"type_vocab_size":2})"),
      109'482'240);
  EXPECT_EQ(
      Numel(
          R"({"model_type":"t5","vocab_size":32128,"d_model":512,"d_kv":64,"d_ff":2048,"num_layers":6,"num_heads":8})"),
      60'506'624);
}

TEST(HfConfigTest, ArchitectureChoosesTheHead) {
  const auto base = ModelFromHfConfig(With(kLlama, R"("architectures":["LlamaModel"])"), "c");
  ASSERT_TRUE(base.ok()) << base.status();
  EXPECT_EQ(base->name(), "LlamaModel");
  EXPECT_NE(Find(base->root(), {"layers", "1", "self_attn", "q_proj"}), nullptr);
  const auto causal = ModelFromHfConfig(kLlama, "c");
  ASSERT_TRUE(causal.ok()) << causal.status();
  EXPECT_EQ(causal->root().class_name(), "LlamaForCausalLM");
  const v1::Module* head = Find(causal->root(), {"lm_head"});
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->parameters(0).tied_to(), "");
}

TEST(HfConfigTest, TiedHeadIsTheEmbedding) {
  const auto spec = ModelFromHfConfig(With(kLlama, R"("tie_word_embeddings":true)"), "c");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(Find(spec->root(), {"lm_head"})->parameters(0).tied_to(), "model.embed_tokens.weight");
}

TEST(HfConfigTest, DTypeIsTheConfigsAndBuffersKeepTheirs) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const char* value : {"bfloat16", "torch.bfloat16"}) {
      const auto spec =
          ModelFromHfConfig(With(kLlama, absl::StrCat("\"", key, "\":\"", value, "\"")), "c");
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(Find(spec->root(), {"lm_head"})->parameters(0).dtype(), "bfloat16");
      EXPECT_EQ(Find(spec->root(), {"model", "rotary_emb"})->buffers(0).dtype(), "float32");
    }
  }
  const auto both =
      ModelFromHfConfig(With(kLlama, R"("dtype":"float16","torch_dtype":"float64")"), "c");
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(Find(both->root(), {"lm_head"})->parameters(0).dtype(), "float16");
}

TEST(HfConfigTest, T5SharesOneEmbeddingModule) {
  const auto spec = ModelFromHfConfig(kT5, "c");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(Find(spec->root(), {"encoder", "embed_tokens"})->same_as(), "shared");
  EXPECT_EQ(Find(spec->root(), {"decoder", "embed_tokens"})->same_as(), "shared");
  EXPECT_EQ(Find(spec->root(), {"lm_head"})->parameters(0).tied_to(), "shared.weight");
}

TEST(HfConfigTest, NullIsAbsent) {
  EXPECT_EQ(Numel(With(kLlama, R"("head_dim":null,"rope_scaling":null,"torch_dtype":null)")),
            Numel(kLlama));
}

TEST(HfConfigTest, MissingKeyIsNamed) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    EXPECT_THAT(ErrorOf(Replaced(kLlama, key, "other")),
                StartsWith(absl::StrCat("config.json: ", key, ": is missing; give an integer")));
  }
  EXPECT_THAT(ErrorOf(R"({"model_type":"gpt2"})"), HasSubstr("vocab_size: is missing"));
  EXPECT_THAT(ErrorOf(Replaced(kT5, "d_kv", "x")), HasSubstr("d_kv: is missing"));
}

TEST(HfConfigTest, WrongValueIsShown) {
  for (const char* value : {"0", "-1", "4.0", "1e3", "\"16\"", "true", "[16]", "{}",
                            "9223372036854775808", "18446744073709551616", "2147483648"}) {
    const std::string error =
        ErrorOf(Replaced(kLlama, R"("hidden_size":16)", absl::StrCat(R"("hidden_size":)", value)));
    EXPECT_THAT(error, AllOf(StartsWith("config.json: hidden_size: is "),
                             HasSubstr("give an integer from 1 to 2147483647")));
  }
  EXPECT_THAT(ErrorOf(With(kLlama, R"("attention_bias":1)")),
              HasSubstr("attention_bias: is 1; give true or false"));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("partial_rotary_factor":2)")),
              HasSubstr("partial_rotary_factor: is 2"));
}

TEST(HfConfigTest, AbsurdCountsAreErrorsAndNotAllocations) {
  for (const char* layers : {"4097", "9223372036854775807", "9223372036854775808"}) {
    EXPECT_THAT(ErrorOf(Replaced(kLlama, R"("num_hidden_layers":2)",
                                 absl::StrCat(R"("num_hidden_layers":)", layers))),
                HasSubstr("num_hidden_layers: is "));
  }
  const std::string mixtral = Replaced(kLlama, "\"llama\"", "\"mixtral\"");
  EXPECT_THAT(ErrorOf(With(mixtral, R"("num_local_experts":16385)")),
              HasSubstr("num_local_experts: is 16385; give an integer from 1 to 16384"));
  // Each size is in its bounds, the product of a shape is not.
  EXPECT_THAT(ErrorOf(Replaced(Replaced(kLlama, R"("vocab_size":50)", R"("vocab_size":2147483647)"),
                               R"("hidden_size":16)", R"("hidden_size":2147483644)")),
              HasSubstr("makes the model larger"));
}

TEST(HfConfigTest, SizesThatDoNotDivideAreRefused) {
  EXPECT_THAT(ErrorOf(Replaced(kLlama, R"("hidden_size":16)", R"("hidden_size":18)")),
              HasSubstr("num_attention_heads: is 4, which does not divide hidden_size 18"));
  EXPECT_THAT(ErrorOf(Replaced(kLlama, R"("num_key_value_heads":2)", R"("num_key_value_heads":3)")),
              HasSubstr("num_key_value_heads: is 3, which does not divide num_attention_heads 4"));
}

TEST(HfConfigTest, UnknownNamesListTheKnown) {
  EXPECT_THAT(ErrorOf(R"({"model_type":"mamba"})"),
              AllOf(HasSubstr("model_type: \"mamba\" is unknown; use one of llama, mistral, "
                              "mixtral, qwen2, gpt2, bert, t5"),
                    HasSubstr("client/export_model_spec.py")));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("model_type: is missing; use one of llama"));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("architectures":["LlamaForNothing"])")),
              HasSubstr("architectures: \"LlamaForNothing\" is not one of LlamaForCausalLM, "));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("architectures":"LlamaModel")")),
              HasSubstr("architectures: "));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("hidden_act":"wavy")")),
              HasSubstr("hidden_act: \"wavy\" is no known activation; use one of gelu, "));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("torch_dtype":"int8")")),
              HasSubstr("torch_dtype: \"int8\" cannot be trained; use float64"));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("dtype":"float99")")), HasSubstr("dtype: \"float99\""));
  EXPECT_THAT(ErrorOf(With(kBert, R"("position_embedding_type":"round")")),
              HasSubstr("position_embedding_type: is \"round\"; use absolute"));
  EXPECT_THAT(ErrorOf(With(kT5, R"("feed_forward_proj":"gated-gelu-new")")),
              HasSubstr("feed_forward_proj: is \"gated-gelu-new\""));
}

TEST(HfConfigTest, ClassifiersHaveAnOutputForEachLabel) {
  const std::string head = R"("architectures":["LlamaForSequenceClassification"])";
  const auto labels = [&](const std::string& members) {
    const auto spec = ModelFromHfConfig(With(With(kLlama, head), members), "c");
    EXPECT_TRUE(spec.ok()) << spec.status();
    return Find(spec->root(), {"score"})->parameters(0).shape(0);
  };
  EXPECT_EQ(labels(R"("x":0)"), 2);
  EXPECT_EQ(labels(R"("num_labels":7)"), 7);
  EXPECT_EQ(labels(R"("id2label":{"0":"a","1":"b","2":"c"})"), 3);
  EXPECT_THAT(ErrorOf(With(kLlama, R"("num_labels":2,"id2label":{"0":"a"})")),
              HasSubstr("num_labels: is 2, but id2label names 1"));
  EXPECT_THAT(ErrorOf(With(kLlama, R"("id2label":[])")), HasSubstr("id2label: is an array"));
}

TEST(HfConfigTest, ModelsWithOtherTensorsAreRefused) {
  EXPECT_THAT(ErrorOf(With(kLlama, R"("quantization_config":{"bits":4})")),
              HasSubstr("quantization_config: is there"));
  EXPECT_THAT(ErrorOf(With(kBert, R"("pruned_heads":{"0":[1]})")),
              HasSubstr("pruned_heads: is there"));
  EXPECT_EQ(Numel(With(kBert, R"("pruned_heads":{})")), Numel(kBert));
  EXPECT_THAT(ErrorOf(With(kBert, R"("add_cross_attention":true)")),
              HasSubstr("add_cross_attention: is true and is_decoder is not"));
}

TEST(HfConfigTest, WhatIsNoConfigIsRefused) {
  EXPECT_THAT(ErrorOf(""), StartsWith("config.json: is not JSON"));
  EXPECT_THAT(ErrorOf("{\"model_type\""), StartsWith("config.json: is not JSON"));
  EXPECT_THAT(ErrorOf("[]"), StartsWith("config.json: is not a JSON object"));
  EXPECT_THAT(ErrorOf("7"), StartsWith("config.json: is not a JSON object"));
  EXPECT_THAT(ErrorOf("{} {}"), StartsWith("config.json: is not JSON"));
  EXPECT_THAT(ErrorOf("{\"a\":\"\xff\"}"), StartsWith("config.json: is not JSON"));
  EXPECT_THAT(ErrorOf(R"({"model_type":"llama","model_type":"bert"})"),
              StartsWith("config.json: has the key \"model_type\" twice"));
  EXPECT_THAT(ErrorOf(std::string((4 << 20) + 1, ' ')), StartsWith("config.json: has more than"));
}

TEST(HfConfigTest, DeepNestingIsAnErrorAndNotAStackOverflow) {
  EXPECT_THAT(ErrorOf("{\"a\":" + std::string(1'000'000, '[')),
              StartsWith("config.json: is nested more than 16 levels deep"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf(objects), StartsWith("config.json: is nested more than 16 levels deep"));
}

}  // namespace
}  // namespace tessera
