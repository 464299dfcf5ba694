// The importer's trees against those that transformers built (tests/golden/hf_goldens.py): every
// module with its classes, every parameter and buffer with shape and dtype, every tie and alias.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/fingerprint.h"
#include "common/model_spec.h"
#include "coordinator/model_import/hf_config.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

template <typename Tensor>
std::string TensorLine(const char* kind, const std::string& fqn, const Tensor& tensor) {
  return absl::StrCat(kind, " ", JoinFqn(fqn, tensor.name()), " [",
                      absl::StrJoin(tensor.shape(), ","), "] ", tensor.dtype());
}

// The tree as the generator writes it.
void AppendLines(const v1::Module& module, const std::string& fqn,
                 std::vector<std::string>* lines) {
  if (!module.same_as().empty()) {
    lines->push_back(absl::StrCat("m ", fqn, " = ", module.same_as()));
    return;
  }
  lines->push_back(absl::StrCat("m ", fqn, " ", module.class_name(), " ",
                                absl::StrJoin(module.base_classes(), ",")));
  for (const v1::Parameter& parameter : module.parameters()) {
    std::string line = TensorLine("p", fqn, parameter);
    if (!parameter.tied_to().empty()) absl::StrAppend(&line, " = ", parameter.tied_to());
    lines->push_back(line);
  }
  for (const v1::Buffer& buffer : module.buffers()) {
    lines->push_back(TensorLine("b", fqn, buffer));
  }
  for (const v1::Module& child : module.children()) {
    AppendLines(child, JoinFqn(fqn, child.name()), lines);
  }
}

int64_t Numel(const v1::ModelSpec& spec) {
  const absl::StatusOr<ModelIndex> index = ModelIndex::Create(spec);
  EXPECT_TRUE(index.ok()) << index.status();
  int64_t numel = 0;
  for (const ModelIndex::Parameter& parameter : index->parameters()) numel += parameter.numel;
  return numel;
}

void Compare(const Json& golden) {
  const std::string config = golden.at("config").dump();
  SCOPED_TRACE(config);
  const absl::StatusOr<v1::ModelSpec> spec = ModelFromHfConfig(config, "config.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<std::string> lines;
  AppendLines(spec->root(), "", &lines);
  if (golden.contains("tree")) {
    EXPECT_EQ(lines, golden.at("tree").get<std::vector<std::string>>());
  } else {
    EXPECT_EQ(Sha256Hex(absl::StrJoin(lines, "\n")), golden.at("sha256").get<std::string>());
  }
  EXPECT_EQ(Numel(*spec), golden.at("numel").get<int64_t>());
}

class HfConfigGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(HfConfigGoldenTest, TreesAreThoseOfTransformers) {
  std::ifstream file(absl::StrCat("tests/golden/hf/", GetParam(), ".json"));
  const Json golden = Json::parse(file, /*cb=*/nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(golden.is_discarded());
  EXPECT_GE(golden.at("cases").size(), 60);
  for (const Json& one : golden.at("cases")) Compare(one);
}

INSTANTIATE_TEST_SUITE_P(Families, HfConfigGoldenTest,
                         testing::Values("bert", "gpt2", "llama", "mistral", "mixtral", "qwen2",
                                         "t5"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
