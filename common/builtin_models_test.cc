#include "common/builtin_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model_spec.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// Hugging Face's GPT-2 with n_layer 12, n_embd 768, n_positions 1024, vocab_size 50257 has
// 124,439,808 parameters.
TEST(BuiltinModelsTest, HasAsManyParametersAsGpt2) {
  const v1::ModelSpec spec =
      GptModelSpec({.layers = 12, .width = 768, .heads = 12, .context = 1024, .vocab = 50257});
  const auto index = ModelIndex::Create(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  int64_t numel = 0;
  for (const auto& parameter : index->parameters()) numel += parameter.numel;
  EXPECT_EQ(numel, 124'439'808);
}

TEST(BuiltinModelsTest, NamesAndShapesAreThoseOfGpt2) {
  const v1::ModelSpec spec =
      GptModelSpec({.layers = 2, .width = 8, .heads = 2, .context = 16, .vocab = 256});
  const auto index = ModelIndex::Create(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  std::vector<std::string> all;
  for (const auto& parameter : index->parameters()) {
    if (parameter.fqn.rfind("h.1.", 0) == 0) continue;
    all.push_back(absl::StrCat(parameter.fqn, " ", absl::StrJoin(parameter.spec->shape(), "x")));
  }
  EXPECT_THAT(all, ElementsAre("wte.weight 256x8", "wpe.weight 16x8",                     //
                               "h.0.ln_1.weight 8", "h.0.ln_1.bias 8",                    //
                               "h.0.attn.c_attn.weight 8x24", "h.0.attn.c_attn.bias 24",  //
                               "h.0.attn.c_proj.weight 8x8", "h.0.attn.c_proj.bias 8",    //
                               "h.0.ln_2.weight 8", "h.0.ln_2.bias 8",                    //
                               "h.0.mlp.c_fc.weight 8x32", "h.0.mlp.c_fc.bias 32",        //
                               "h.0.mlp.c_proj.weight 32x8", "h.0.mlp.c_proj.bias 8",     //
                               "ln_f.weight 8", "ln_f.bias 8"));
  ASSERT_EQ(index->parameters()[0].uses.size(), 1u);
  EXPECT_EQ(index->parameters()[0].uses[0].fqn, "lm_head.weight");
}

TEST(BuiltinModelsTest, InitialValuesFollowGpt2) {
  const v1::ModelSpec spec =
      GptModelSpec({.layers = 8, .width = 8, .heads = 2, .context = 16, .vocab = 256});
  const auto index = ModelIndex::Create(spec);
  ASSERT_TRUE(index.ok()) << index.status();
  std::map<std::string, v1::Init> init;
  for (const auto& parameter : index->parameters()) init[parameter.fqn] = parameter.spec->init();
  EXPECT_EQ(init["wte.weight"].std(), 0.02);
  EXPECT_EQ(init["h.7.attn.c_attn.weight"].std(), 0.02);
  // 0.02 / sqrt(16)
  EXPECT_DOUBLE_EQ(init["h.7.attn.c_proj.weight"].std(), 0.005);
  EXPECT_DOUBLE_EQ(init["h.7.mlp.c_proj.weight"].std(), 0.005);
  EXPECT_EQ(init["h.7.mlp.c_fc.bias"].kind(), "zeros");
  EXPECT_EQ(init["ln_f.weight"].kind(), "ones");
  EXPECT_EQ(init["ln_f.bias"].kind(), "zeros");
}

}  // namespace
}  // namespace tessera
