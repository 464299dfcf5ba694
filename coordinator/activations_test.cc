#include "coordinator/activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/json_message.h"
#include "coordinator/planner.h"
#include "coordinator/planning_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A parameter of float32.
std::string P(const std::string& name, const std::vector<int64_t>& shape) {
  return absl::StrCat(R"({"name":")", name, R"(","dtype":"float32","shape":[)",
                      absl::StrJoin(shape, ","), "]}");
}

// A module of parameters and children, each in JSON.
std::string M(const std::string& name, const std::string& class_name,
              const std::vector<std::string>& parameters,
              const std::vector<std::string>& children = {}) {
  return absl::StrCat(R"({"name":")", name, R"(","class_name":")", class_name,
                      R"(","parameters":[)", absl::StrJoin(parameters, ","), R"(],"children":[)",
                      absl::StrJoin(children, ","), "]}");
}

std::string Linear(const std::string& name, int64_t in, int64_t out) {
  return M(name, "Linear", {P("weight", {out, in})});
}

struct Case {
  std::string root;                  // a module in JSON
  std::string more;                  // of the job
  std::vector<std::string> classes;  // that are units
};

Activations Forecast(const Case& c) {
  v1::ModelSpec model;
  const absl::Status parsed =
      ParseJson(absl::StrCat(R"({"root":)", c.root, "}"), "m", "a ModelSpec", &model);
  EXPECT_TRUE(parsed.ok()) << parsed;
  v1::JobSpec job = TestJob(absl::StrCat(R"("workload":"attached","model":{"file":"m.json"},)",
                                         R"("wrap":{"policy":"none"})", c.more));
  if (!c.classes.empty()) {
    job.mutable_wrap()->set_policy("class");
    for (const std::string& name : c.classes) job.mutable_wrap()->add_wrap_classes(name);
  }
  const auto plan = MakePlan(model, job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? ForecastActivations(model, *plan, job, 2) : Activations();
}

// Three sequences of five tokens.
constexpr char kPass[] = R"(,"activations":{"batch":3,"sequence":5})";
constexpr char kBFloat16Pass[] =
    R"(,"activations":{"batch":3,"sequence":5},"mixed_precision":{"param_dtype":"bf16"})";

// Of one token in float32, by hand.
TEST(ActivationsTest, WhatKnownClassesKeep) {
  const std::vector<std::tuple<std::string, std::string, int64_t>> cases = {
      {"Linear", Linear("m", 8, 4), 4 * 8},
      {"Conv1D", M("m", "Conv1D", {P("weight", {8, 4}), P("bias", {4})}), 4 * 8},
      {"Embedding", M("m", "Embedding", {P("weight", {100, 8})}), 8},
      {"LayerNorm", M("m", "LayerNorm", {P("weight", {8}), P("bias", {8})}), 4 * 8 + 8},
      {"RMSNorm", M("m", "RMSNorm", {P("weight", {8})}), 4 * 8 + 4},
      {"LlamaRMSNorm", M("m", "LlamaRMSNorm", {P("weight", {8})}), 4 * 8 + 4 * 8 + 4},
      {"T5LayerNorm", M("m", "T5LayerNorm", {P("weight", {8})}), 4 * 8 + 4 * 8 + 4},
      {"MultiheadAttention",
       M("m", "MultiheadAttention", {P("in_proj_weight", {24, 8})},
         {M("out_proj", "NonDynamicallyQuantizableLinear", {P("weight", {8, 8})})}),
       4 * 5 * 8},
  };
  for (const auto& [name, module, bytes] : cases) {
    const Activations forecast = Forecast({M("", "Sequential", {}, {module}), kPass, {}});
    EXPECT_EQ(forecast.certainty, v1::Forecast::ESTIMATED) << name;
    EXPECT_EQ(forecast.total, 15 * bytes) << name;
    ASSERT_EQ(forecast.classes.size(), 1u) << name;
    EXPECT_EQ(forecast.classes[0].class_name(), name);
    EXPECT_EQ(forecast.classes[0].modules(), 1);
  }
}

TEST(ActivationsTest, FunctionsWorkOnWhatTheModuleBeforeGave) {
  const auto total = [](const std::string& class_name) {
    return Forecast(
               {M("", "Sequential", {}, {Linear("a", 8, 6), M("f", class_name, {})}), kPass, {}})
        .total;
  };
  EXPECT_EQ(total("GELU"), 15 * 4 * (8 + 6));
  EXPECT_EQ(total("SomeActivation"), 15 * 4 * (8 + 6));
  EXPECT_EQ(total("ReLU"), 15 * 4 * 8);
  EXPECT_EQ(total("Dropout"), 15 * (4 * 8 + 6));
  const Activations first =
      Forecast({M("", "Sequential", {}, {M("f", "GELU", {}), Linear("a", 8, 6)}), kPass, {}});
  EXPECT_EQ(first.certainty, v1::Forecast::UNKNOWN);
}

TEST(ActivationsTest, SubclassesCountAsTheirBase) {
  std::string mine = Linear("a", 8, 4);
  mine.replace(mine.find("\"Linear\""), 8, R"("MyLinear","base_classes":["Linear","Module"])");
  EXPECT_EQ(Forecast({M("", "Sequential", {}, {mine}), kPass, {}}).total, 15 * 32);
}

TEST(ActivationsTest, OneUnknownClassMakesAllUnknown) {
  const Activations forecast = Forecast(
      {M("", "Sequential", {}, {Linear("a", 8, 4), M("b", "Mystery", {P("w", {3})})}), kPass, {}});
  EXPECT_EQ(forecast.certainty, v1::Forecast::UNKNOWN);
  EXPECT_EQ(forecast.total, 15 * 32);
  ASSERT_EQ(forecast.classes.size(), 2u);
  EXPECT_EQ(forecast.classes[1].class_name(), "Mystery");
  EXPECT_EQ(forecast.classes[1].certainty(), v1::Forecast::UNKNOWN);
  // Nobody knows what happens between the modules of an unknown one.
  const Activations around = Forecast({M("", "Mystery", {}, {Linear("a", 8, 4)}), kPass, {}});
  EXPECT_EQ(around.certainty, v1::Forecast::UNKNOWN);
  EXPECT_EQ(around.classes[0].class_name(), "Mystery");
}

TEST(ActivationsTest, SaysWhatHasToBeGiven) {
  const std::string root = M("", "Sequential", {}, {Linear("a", 8, 4)});
  const std::vector<std::tuple<std::string, std::string>> cases = {
      {"", "give activations.batch and activations.sequence"},
      {R"(,"activations":{"batch":3})", "give activations.sequence"},
      {R"(,"activations":{"sequence":3})", "give activations.batch for"},
  };
  for (const auto& [more, note] : cases) {
    const Activations forecast = Forecast({root, more, {}});
    EXPECT_EQ(forecast.certainty, v1::Forecast::UNKNOWN);
    ASSERT_EQ(forecast.classes.size(), 1u);
    EXPECT_THAT(forecast.classes[0].note(), HasSubstr(note));
  }
}

TEST(ActivationsTest, InTheUnitsDType) {
  const std::string root = M("", "Sequential", {}, {Linear("a", 8, 4)});
  EXPECT_EQ(Forecast({root, kBFloat16Pass, {}}).total, 15 * 16);
}

std::string LlamaLayer(const std::string& name) {
  // Width 16, four heads of 4, two of them for keys, 48 within the MLP.
  return M(
      name, "LlamaDecoderLayer", {},
      {M("self_attn", "LlamaAttention", {},
         {Linear("q_proj", 16, 16), Linear("k_proj", 16, 8), Linear("v_proj", 16, 8),
          Linear("o_proj", 16, 16)}),
       M("mlp", "LlamaMLP", {},
         {Linear("gate_proj", 16, 48), Linear("up_proj", 16, 48), Linear("down_proj", 48, 16)}),
       M("input_layernorm", "LlamaRMSNorm", {P("weight", {16})}),
       M("post_attention_layernorm", "LlamaRMSNorm", {P("weight", {16})})});
}

TEST(ActivationsTest, LlamaLayersByHand) {
  // Norms and what they give 4 x 16 elements, attention 4 x 16 and the MLP 4 x 48; in float32 the
  // norms' two inputs of 16 and their deviations.
  const int64_t layer = 15 * (2 * (64 + 64 + 192) + 2 * 4 * 16 + 8);
  const std::string model = M("", "LlamaForCausalLM", {},
                              {M("model", "LlamaModel", {},
                                 {M("embed_tokens", "Embedding", {P("weight", {100, 16})}),
                                  M("layers", "ModuleList", {}, {LlamaLayer("0"), LlamaLayer("1")}),
                                  M("norm", "LlamaRMSNorm", {P("weight", {16})}),
                                  M("rotary_emb", "LlamaRotaryEmbedding", {})}),
                               Linear("lm_head", 16, 100)});
  const int64_t logits = 15 * 100 * (2 + 4);
  const int64_t rest = 15 * 8 + 15 * (2 * 16 + 4 * 16 + 4) + 15 * 2 * 16 + logits;
  const Activations forecast = Forecast({model, kBFloat16Pass, {"LlamaDecoderLayer"}});
  EXPECT_EQ(forecast.certainty, v1::Forecast::ESTIMATED);
  EXPECT_EQ(forecast.total, 2 * layer + rest);
  EXPECT_THAT(forecast.kept, ElementsAre(layer, layer, rest));
  EXPECT_EQ(forecast.classes[0].class_name(), "LlamaDecoderLayer");
  EXPECT_EQ(forecast.classes[0].modules(), 2);
  EXPECT_EQ(forecast.classes[0].bytes(), 2 * layer);
  EXPECT_EQ(forecast.classes[1].class_name(), "logits");
  // A layer computed again keeps the 16 elements that it begins with.
  const Activations again =
      Forecast({model,
                R"(,"activations":{"batch":3,"sequence":5,"recompute":"unit"},)"
                R"("mixed_precision":{"param_dtype":"bf16"})",
                {"LlamaDecoderLayer"}});
  EXPECT_THAT(again.kept, ElementsAre(15 * 2 * 16, 15 * 2 * 16, rest));
  EXPECT_EQ(again.recomputed, layer);
  EXPECT_EQ(again.total, 2 * 15 * 2 * 16 + rest + layer);
}

TEST(ActivationsTest, ABlockOfAnotherModelIsNotKnown) {
  const Activations forecast = Forecast(
      {M("", "Sequential", {}, {M("b", "GPT2Block", {}, {Linear("fc", 8, 32)})}), kPass, {}});
  EXPECT_EQ(forecast.certainty, v1::Forecast::UNKNOWN);
  EXPECT_THAT(forecast.classes[0].note(), HasSubstr("has not the parameters"));
}

std::string Gpt2Layer() {
  return M("b", "GPT2Block", {},
           {M("attn", "GPT2Attention", {},
              {M("c_attn", "Conv1D", {P("weight", {16, 48})}),
               M("c_proj", "Conv1D", {P("weight", {16, 16})})}),
            M("mlp", "GPT2MLP", {},
              {M("c_fc", "Conv1D", {P("weight", {16, 64})}),
               M("c_proj", "Conv1D", {P("weight", {64, 16})})})});
}

// 34 bytes x width in 16 bits (Korthikanti and others, without attention's scores), and the norms'
// 16.
TEST(ActivationsTest, Gpt2AndBertLayersAreThirtyFourBytesAWidth) {
  const std::string bert =
      M("b", "BertLayer", {},
        {M("attention", "BertAttention", {},
           {M("self", "BertSelfAttention", {}, {Linear("query", 16, 16)})}),
         M("intermediate", "BertIntermediate", {}, {Linear("dense", 16, 64)})});
  for (const std::string& layer : {Gpt2Layer(), bert}) {
    EXPECT_EQ(Forecast({M("", "Sequential", {}, {layer}), kBFloat16Pass, {}}).total,
              15 * (34 * 16 + 16));
  }
}

TEST(ActivationsTest, MixtralSendsATokenToTwoExperts) {
  const std::string layer = M(
      "l", "MixtralDecoderLayer", {},
      {M("self_attn", "MixtralAttention", {}, {Linear("q_proj", 16, 16), Linear("k_proj", 16, 8)}),
       M("block_sparse_moe", "MixtralSparseMoeBlock", {},
         {Linear("gate", 16, 8),
          M("experts", "ModuleList", {},
            {M("0", "MixtralBlockSparseTop2MLP", {}, {Linear("w1", 16, 48)})})}),
       M("input_layernorm", "MixtralRMSNorm", {P("weight", {16})})});
  EXPECT_EQ(Forecast({M("", "Sequential", {}, {layer}), kBFloat16Pass, {}}).total,
            15 * (2 * (64 + 64 + 2 * (48 + 192)) + 2 * 4 * 16 + 8 + 4 * 8 + 64));
}

TEST(ActivationsTest, T5KeepsItsScores) {
  const std::string block =
      M("b", "T5Block", {},
        {M("layer", "ModuleList", {},
           {M("0", "T5LayerSelfAttention", {},
              {M("SelfAttention", "T5Attention", {}, {Linear("q", 32, 128)})}),
            M("1", "T5LayerFF", {},
              {M("DenseReluDense", "T5DenseActDense", {}, {Linear("wi", 32, 256)})})})});
  // Two norms of 3 x 32 elements, 4 x 128 of attention and 2 x 256 of the MLP; the norms' inputs in
  // float32 and their deviations; two masks of 32 bytes and one of 256; of each of 5 tokens 4 + 2
  // + 1 bytes in each of two heads.
  EXPECT_EQ(Forecast({M("", "T5Stack", {}, {block}), kBFloat16Pass, {}}).total,
            15 * (2 * (96 + 512 + 96 + 512) + 2 * (4 * 32 + 4) + 64 + 256 + 2 * 5 * 7));
}

TEST(ActivationsTest, GeluThatIsNotOneOperationKeepsThreeMore) {
  std::string layer = Gpt2Layer();
  const std::string c_proj = M("c_proj", "Conv1D", {P("weight", {64, 16})});
  layer.replace(layer.find(c_proj), c_proj.size(),
                absl::StrCat(c_proj, ",", M("act", "NewGELUActivation", {})));
  EXPECT_EQ(Forecast({M("", "Sequential", {}, {layer}), kBFloat16Pass, {}}).total,
            15 * (34 * 16 + 16 + 3 * 64 * 2));
}

TEST(ActivationsTest, SharedModulesComputeAgain) {
  const std::string root =
      M("", "Sequential", {}, {Linear("a", 8, 8), R"({"name":"b","same_as":"a"})"});
  EXPECT_EQ(Forecast({root, kPass, {}}).total, 2 * 15 * 32);
}

TEST(ActivationsTest, FiguresThatOverflowAreCutOff) {
  const std::string root = M("", "Sequential", {}, {Linear("a", 1 << 20, 1 << 20)});
  const Activations forecast =
      Forecast({root, R"(,"activations":{"batch":2147483648,"sequence":2147483648})", {}});
  EXPECT_EQ(forecast.total, kMaxActivationBytes);
}

// The blocks of tests/measure/saved_activations.py: a width of 256, eight heads of 32 of which four
// have keys, an MLP of 688 or 1,024; T5 has six heads of 64.
std::string MeasuredBlock(const std::string& name) {
  const std::vector<std::string> attention = {
      Linear("q_proj", 256, 256), Linear("k_proj", 256, 128), Linear("v_proj", 256, 128),
      Linear("o_proj", 256, 256)};
  const std::string norm = M("input_layernorm", "LlamaRMSNorm", {P("weight", {256})});
  if (name == "llama" || name == "mistral" || name == "qwen2") {
    const std::string layer = name == "llama"     ? "LlamaDecoderLayer"
                              : name == "mistral" ? "MistralDecoderLayer"
                                                  : "Qwen2DecoderLayer";
    return M("b", layer, {},
             {M("self_attn", "A", {}, attention),
              M("mlp", "MLP", {}, {Linear("gate_proj", 256, 688)}), norm});
  }
  if (name == "mixtral") {
    const std::string expert = M("0", "E", {}, {Linear("w1", 256, 688)});
    return M("b", "MixtralDecoderLayer", {},
             {M("self_attn", "A", {}, attention),
              M("block_sparse_moe", "S", {},
                {Linear("gate", 256, 8), M("experts", "ModuleList", {}, {expert})}),
              norm});
  }
  if (name == "gpt2") {
    return M(
        "b", "GPT2Block", {},
        {M("attn", "A", {}, {M("c_attn", "Conv1D", {P("weight", {256, 768})})}),
         M("mlp", "MLP", {},
           {M("c_fc", "Conv1D", {P("weight", {256, 1024})}), M("act", "NewGELUActivation", {})})});
  }
  if (name == "bert") {
    return M("b", "BertLayer", {},
             {M("attention", "A", {}, {M("self", "S", {}, {Linear("query", 256, 256)})}),
              M("intermediate", "I", {}, {Linear("dense", 256, 1024)})});
  }
  const std::vector<std::string> dense =
      name == "t5-relu"
          ? std::vector<std::string>{Linear("wi", 256, 1024)}
          : std::vector<std::string>{Linear("wi_0", 256, 1024), Linear("wi_1", 256, 1024),
                                     M("act", "NewGELUActivation", {})};
  return M("b", "T5Block", {},
           {M("layer", "ModuleList", {},
              {M("0", "T5LayerSelfAttention", {},
                 {M("SelfAttention", "T5Attention", {}, {Linear("q", 256, 384)})}),
               M("1", "T5LayerFF", {}, {M("DenseReluDense", "D", {}, dense)})})});
}

// Bytes a token that torch 2.5.1 and transformers 4.57.3 saved there, in bfloat16 and float32.
TEST(ActivationsTest, BlocksAreWithinFourPercentOfWhatTransformersSaves) {
  const std::vector<std::tuple<std::string, int64_t, int64_t>> measured = {
      {"llama", 11'272, 20'488},   {"mistral", 11'272, 20'488},       {"qwen2", 11'272, 20'488},
      {"mixtral", 19'944, 37'740}, {"gpt2", 14'856, 29'200},          {"bert", 8'712, 16'912},
      {"t5-relu", 19'720, 29'448}, {"t5-gated-gelu", 29'960, 49'928},
  };
  const std::string pass = R"(,"activations":{"batch":2,"sequence":128})";
  for (const auto& [name, bfloat16, float32] : measured) {
    const std::string root = M("", "Sequential", {}, {MeasuredBlock(name)});
    const Activations half =
        Forecast({root, pass + R"(,"mixed_precision":{"param_dtype":"bf16"})", {}});
    EXPECT_EQ(half.certainty, v1::Forecast::ESTIMATED) << name;
    EXPECT_NEAR(static_cast<double>(half.total) / 256, bfloat16, 0.04 * bfloat16) << name;
    EXPECT_NEAR(static_cast<double>(Forecast({root, pass, {}}).total) / 256, float32,
                0.04 * float32)
        << name;
  }
}

Activations Gpt(const std::string& more, int world_size = 2) {
  const v1::JobSpec job = TestJob(more);
  const auto model = ModelOf(job);
  const auto plan = MakePlan(*model, job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return ForecastActivations(*model, *plan, job, world_size);
}

// 12 sequences of 64 tokens in a width of 128: rows of 768 and streams of 98,304 elements. A block
// has 8 of these, two of four times the length, 4 x 768 statistics and 196,608 probabilities.
TEST(GptActivationsTest, TheDefaultJobByHand) {
  const int64_t block = 8 * 98'304 + 2 * 393'216 + 4 * 768 + 196'608;
  const int64_t root = 5 * 98'304 + 2 * 768 + 768 * 256 + 393'216 + (3 * 98'304 + 196'608);
  const Activations forecast = Gpt("");
  EXPECT_EQ(forecast.certainty, v1::Forecast::EXACT);
  EXPECT_EQ(forecast.total, 4 * (4 * block + root));
  EXPECT_EQ(forecast.total, 34'658'304);
  EXPECT_EQ(forecast.constant, forecast.total);  // allocated before the first step
  EXPECT_EQ(forecast.classes[0].class_name(), "Block");
  EXPECT_EQ(forecast.classes[0].bytes(), 4 * 4 * block);
}

TEST(GptActivationsTest, FollowsBatchAndWorldSize) {
  EXPECT_EQ(Gpt("", 4).total, Gpt(R"("micro_batches":2)").total);
  EXPECT_EQ(Gpt(R"("activations":{"batch":6})").total, Gpt("", 4).total);
  EXPECT_LT(Gpt(R"("activations":{"sequence":32})").total, Gpt("").total / 2);
}

// A block's 198,272 parameters and the root's 41,216, each with a gradient, in float32.
TEST(GptActivationsTest, StandInsForSixteenBits) {
  EXPECT_EQ(Gpt(R"("mixed_precision":{"param_dtype":"bf16"})").total - Gpt("").total,
            // The root twice; the largest matrix and bias of a block, and three vectors of a norm.
            4 * (2 * 41'216 + 4 * 128 * 128 + 4 * 128 + 3 * 128));
}

TEST(GptActivationsTest, ComputedAgainBlocksKeepTheirInputAlone) {
  const Activations keeps = Gpt(""), again = Gpt(R"("activations":{"recompute":"unit"})");
  EXPECT_EQ(again.certainty, v1::Forecast::EXACT);
  // Of 4 blocks three are not kept, but for 768 x 128 elements each.
  EXPECT_EQ(keeps.classes[0].class_name(), "Block");
  EXPECT_EQ(keeps.total - again.total, 3 * (keeps.classes[0].bytes() / 4 - 4 * 768 * 128));
}

TEST(ReplayActivationsTest, KeepsNone) {
  const Activations none = Gpt(R"("workload":"replay")");
  EXPECT_EQ(none.certainty, v1::Forecast::EXACT);
  EXPECT_EQ(none.total, 0);
}

TEST(GptActivationsTest, AnotherProgramIsEstimated) {
  const Activations attached = Gpt(R"("workload":"attached")");
  EXPECT_EQ(attached.certainty, v1::Forecast::ESTIMATED);
  // 8C + 2 x 4C elements, 2C of masks, 16 bytes of norms.
  EXPECT_EQ(attached.classes[0].bytes(), 4 * 768 * (16 * 128 * 4 + 2 * 128 + 16));
}

}  // namespace
}  // namespace tessera
