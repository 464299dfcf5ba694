#include "common/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A model whose root has `content`, e.g. R"("parameters":[...])".
absl::StatusOr<v1::ModelSpec> ParseRoot(const std::string& content) {
  return ParseModelSpec(absl::StrCat(R"({"name":"m","root":{)", content, "}}"), "m.json");
}

constexpr char kWeight[] = R"({"name":"w","shape":[2,3],"dtype":"float32"})";

std::string Nested(int depth) {
  std::string json = R"({"root":{)";
  for (int i = 1; i < depth; ++i) json += R"("children":[{"name":"a",)";
  json += absl::StrCat("\"parameters\":[", kWeight, "]");
  for (int i = 1; i < depth; ++i) json += "}]";
  return json + "}}";
}

TEST(ModelSpecTest, ReadsTheDocumentedExample) {
  const auto spec = ParseModelSpec(R"({"name": "two-layer",
     "root": {"name": "", "class_name": "Sequential",
              "children": [
                {"name": "0", "class_name": "Linear", "base_classes": ["Module"],
                 "parameters": [{"name": "weight", "shape": [5, 5], "dtype": "float32", "requires_grad": true, "init": {"kind": "normal", "std": 0.02}},
                                {"name": "bias", "shape": [5], "dtype": "fp32", "init": {"kind": "zeros"}}],
                 "buffers": [{"name": "seen", "shape": [], "dtype": "int64"}]},
                {"name": "1", "class_name": "Linear",
                 "parameters": [{"name": "weight", "shape": [5, 5], "dtype": "float32", "tied_to": "0.weight"}]}]}})",
                                   "model.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto index = ModelIndex::Create(*spec);
  ASSERT_TRUE(index.ok());
  ASSERT_EQ(index->modules().size(), 3u);
  ASSERT_EQ(index->parameters().size(), 2u);
  EXPECT_EQ(index->parameters()[0].fqn, "0.weight");
  EXPECT_EQ(index->parameters()[0].numel, 25);
  ASSERT_EQ(index->parameters()[0].uses.size(), 1u);
  EXPECT_EQ(index->parameters()[0].uses[0].fqn, "1.weight");
  EXPECT_EQ(index->parameters()[1].fqn, "0.bias");
  EXPECT_EQ(index->parameters()[1].dtype, v1::FLOAT32);
}

TEST(ModelSpecTest, TieMayNameALaterHolder) {
  const auto spec = ParseRoot(
      R"("children":[{"name":"head","parameters":[{"name":"w","shape":[2,3],"dtype":"float32","tied_to":"wte.w"}]},
                     {"name":"wte","parameters":[{"name":"w","shape":[2,3],"dtype":"f32"}]}])");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(ModelIndex::Create(*spec)->parameters()[0].fqn, "wte.w");
}

TEST(ModelSpecTest, AliasUsesEverythingBelowItsTarget) {
  const auto spec = ParseRoot(
      absl::StrCat(R"("children":[{"name":"a","children":[{"name":"x","parameters":[)", kWeight,
                   R"(]},{"name":"y","same_as":"a.x"}]},{"name":"b","same_as":"a"}])"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto index = ModelIndex::Create(*spec);
  ASSERT_TRUE(index.ok());
  ASSERT_EQ(index->parameters().size(), 1u);
  std::vector<std::string> uses;
  for (const auto& use : index->parameters()[0].uses) uses.push_back(use.fqn);
  EXPECT_THAT(uses, ElementsAre("a.y.w", "b.x.w", "b.y.w"));
}

TEST(ModelSpecTest, NestsUpToTheLimit) {
  EXPECT_TRUE(ParseModelSpec(Nested(kMaxModuleDepth), "m.json").ok());
  const auto deeper = ParseModelSpec(Nested(kMaxModuleDepth + 1), "m.json");
  EXPECT_EQ(deeper.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(deeper.status().message()), HasSubstr("more than 64 modules deep"));
  const auto absurd = ParseModelSpec(Nested(100'000), "m.json");
  EXPECT_EQ(absurd.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelSpecTest, SharingThatMultipliesIsRefusedInLittleTime) {
  // Each module holds the one before it twice: 2^40 uses.
  std::string content = absl::StrCat(R"("children":[{"name":"m0","parameters":[)", kWeight, "]}");
  for (int i = 1; i <= 40; ++i) {
    absl::StrAppend(&content, R"(,{"name":"m)", i, R"(","children":[{"name":"x","same_as":"m)",
                    i - 1, R"("},{"name":"y","same_as":"m)", i - 1, R"("}]})");
  }
  const auto spec = ParseRoot(content + "]");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("share fewer"));
}

TEST(ModelSpecTest, LongChainOfAliasesIsRefused) {
  std::string content = absl::StrCat(R"("children":[{"name":"m0","parameters":[)", kWeight, "]}");
  for (int i = 1; i <= 500; ++i) {
    absl::StrAppend(&content, R"(,{"name":"m)", i, R"(","children":[{"name":"x","same_as":"m)",
                    i - 1, R"("}]})");
  }
  const auto spec = ParseRoot(content + "]");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("modules deep"));
}

TEST(ModelSpecTest, RefusesBadModelsWithOneLineThatNamesThem) {
  const std::string w = kWeight;
  // The root's content, how the message begins, and what it says.
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {R"("parameters":[{"name":"w","shape":[2,-3],"dtype":"float32"}])",
       "w:", "[2,-3]; every extent"},
      {R"("parameters":[{"name":"w","shape":[2,0],"dtype":"float32"}])",
       "w:", "[2,0]; every extent"},
      {R"("parameters":[{"name":"w","shape":[4294967296,4294967296],"dtype":"float32"}])",
       "w:", "overflows int64"},
      {R"("parameters":[{"name":"w","shape":[4294967296,1048576],"dtype":"float32"}])",
       "w:", "larger than"},
      {R"("parameters":[{"name":"w","shape":[],"dtype":"float32"}])",
       "w:", "give it the shape [1]"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"int64"}])",
       "w:", "int64, which cannot be trained"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float8_e4m3fn"}])",
       "w:", "cannot be trained"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float31"}])",
       "w:", "unknown dtype \"float31\""},
      {R"("parameters":[{"name":"w","shape":[2]}])", "w:", "unknown dtype \"\""},
      {R"("parameters":[{"name":"","shape":[2],"dtype":"float32"}])",
       "root:", "parameter without a name"},
      {R"("parameters":[{"name":"a.b","shape":[2],"dtype":"float32"}])",
       "root:", "\"a.b\"; names hold no dot"},
      {R"("parameters":[{"name":"a\nb","shape":[2],"dtype":"float32"}])",
       "root:", "control character"},
      {absl::StrCat("\"parameters\":[", w, ",", w, "]"), "w:", "is there twice"},
      {absl::StrCat("\"parameters\":[", w, "],\"children\":[{\"name\":\"w\"}]"),
       "w:", "is there twice"},
      {absl::StrCat("\"parameters\":[", w, "],\"children\":[{\"name\":\"c\"},{\"name\":\"c\"}]"),
       "c:", "is there twice"},
      {absl::StrCat("\"parameters\":[", w, "],\"children\":[{\"class_name\":\"A\"}]"),
       "root:", "child without a name"},
      {absl::StrCat("\"parameters\":[", w, "],\"name\":\"r\""), "root:", "its name is \"\""},
      {absl::StrCat("\"parameters\":[", w, "],\"same_as\":\"w\""), "root:", "same_as"},
      {R"("class_name":"Empty","children":[{"name":"a"}])", "root:", "no parameters anywhere"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float32","tied_to":"v"}])",
       "w:", "\"v\", which is no parameter"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float32","tied_to":"w"}])",
       "w:", "tied to itself"},
      {R"("parameters":[{"name":"a","shape":[2],"dtype":"float32"},{"name":"b","shape":[2],"dtype":"float32","tied_to":"a"},
          {"name":"c","shape":[2],"dtype":"float32","tied_to":"b"}])",
       "c:", "\"b\", which is itself tied to \"a\""},
      {R"("parameters":[{"name":"a","shape":[2,3],"dtype":"float32"},{"name":"b","shape":[3,2],"dtype":"float32","tied_to":"a"}])",
       "b:", "shape [3,2] and is tied to \"a\", which has [2,3]"},
      {R"("parameters":[{"name":"a","shape":[2],"dtype":"float32"},{"name":"b","shape":[2],"dtype":"bf16","tied_to":"a"}])",
       "b:", "dtype bfloat16 and is tied to \"a\", which has float32"},
      {R"("parameters":[{"name":"a","shape":[2],"dtype":"float32"},{"name":"b","shape":[2],"dtype":"float32","requires_grad":false,"tied_to":"a"}])",
       "b:", "requires_grad false"},
      {absl::StrCat("\"parameters\":[", w, "],\"children\":[{\"name\":\"a\",\"same_as\":\"b\"}]"),
       "a:", "\"b\", which is no earlier module"},
      {absl::StrCat("\"parameters\":[", w,
                    "],\"children\":[{\"name\":\"a\",\"same_as\":\"b\"},{\"name\":\"b\"}]"),
       "a:", "no earlier module"},
      {absl::StrCat(
           "\"parameters\":[", w,
           "],\"children\":[{\"name\":\"a\",\"children\":[{\"name\":\"b\",\"same_as\":\"a\"}]}]"),
       "a.b:", "which encloses it"},
      {absl::StrCat("\"parameters\":[", w,
                    "],\"children\":[{\"name\":\"a\"},{\"name\":\"b\",\"same_as\":\"a\"},{\"name\":"
                    "\"c\",\"same_as\":\"b\"}]"),
       "c:", "itself an alias; name \"a\""},
      {absl::StrCat("\"parameters\":[", w,
                    "],\"children\":[{\"name\":\"a\"},{\"name\":\"b\",\"class_name\":\"B\",\"same_"
                    "as\":\"a\"}]"),
       "b:", "content of its own"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float32","init":{"kind":"xavier"}}])",
       "w:", "\"xavier\"; use normal"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float32","init":{"kind":"normal","std":-1}}])",
       "w:", "std"},
      {R"("parameters":[{"name":"w","shape":[2],"dtype":"float32","init":{"kind":"uniform","low":2,"high":1}}])",
       "w:", "low is less than high"},
      {absl::StrCat("\"parameters\":[", w,
                    "],\"buffers\":[{\"name\":\"b\",\"shape\":[-1],\"dtype\":\"int64\"}]"),
       "b:", "extent -1"},
      {absl::StrCat("\"parameters\":[", w, "],\"shapes\":[1]"), "root.shapes:", "unknown key"},
      {R"("parameters":[{"name":"w","shape":["x"],"dtype":"float32"}])",
       "root.parameters[0].shape[0]:", "\"x\" is not an integer"},
  };
  for (const auto& [content, names, because] : cases) {
    const absl::Status status = ParseRoot(content).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << content;
    const std::string message(status.message());
    EXPECT_TRUE(absl::StartsWith(message, absl::StrCat("m.json: ", names))) << content << "\n"
                                                                            << message;
    EXPECT_THAT(message, HasSubstr(because)) << content;
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_EQ(absl::StrCat(Field(status), ":"), names);
  }
}

TEST(ModelSpecTest, RefusesWhatIsNoModelSpec) {
  for (const char* text : {"", "{", "[]", "null", "5", "\"a\"", "{\"root\":5}", "{\"root\":{}} x",
                           "\xff", "{\"root\" 5}", "{}", "{\"root\":[]}"}) {
    const absl::Status status = ParseModelSpec(text, "dir/m.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StartsWith(status.message(), "dir/m.json: ")) << status;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n"))) << text;
  }
}

TEST(ModelSpecTest, RefusesExtentsAtTheEdgeOfInt64) {
  v1::ModelSpec spec;
  v1::Parameter* w = spec.mutable_root()->add_parameters();
  w->set_name("w");
  w->set_dtype("float64");
  w->add_shape(std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(ValidateModelSpec(spec).ok());
  w->set_shape(0, kMaxModelNumel);
  EXPECT_TRUE(ValidateModelSpec(spec).ok());
  w->add_shape(2);
  EXPECT_FALSE(ValidateModelSpec(spec).ok());
}

}  // namespace
}  // namespace tessera
