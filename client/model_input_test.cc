#include "client/model_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGpt2[] =
    R"({"model_type":"gpt2","vocab_size":50,"n_positions":8,"n_embd":16,"n_layer":1,"n_head":4})";

class ModelInputTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(testing::TempDir(), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  // A file of one float32 tensor of `numel` elements, whose values are a hole in the file.
  void WriteTensor(const std::string& name, const std::string& tensor, int64_t numel) const {
    const std::string header = absl::StrCat("{\"", tensor, R"(":{"dtype":"F32","shape":[)", numel,
                                            R"(],"data_offsets":[0,)", 4 * numel, "]}}");
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
    Write(name, length + header);
    ASSERT_EQ(truncate(Path(name).c_str(),
                       static_cast<off_t>(8 + static_cast<int64_t>(header.size()) + 4 * numel)),
              0);
  }
  static std::string MessageOf(const absl::StatusOr<v1::ModelSpec>& spec) {
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << spec.status();
    return std::string(spec.status().message());
  }

  std::string folder_;
};

TEST_F(ModelInputTest, ConfigIsAFileOrInAFolder) {
  Write("config.json", kGpt2);
  for (const std::string& path : {folder_, folder_ + "/", Path("config.json")}) {
    const auto spec = ReadHfConfig(path);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->name(), "GPT2LMHeadModel");
  }
  std::filesystem::remove(Path("config.json"));
  EXPECT_THAT(MessageOf(ReadHfConfig(folder_)),
              AllOf(HasSubstr("config.json: cannot be read"), StartsWith(folder_)));
}

TEST_F(ModelInputTest, OnlyHeadersAreRead) {
  // 2^36 bytes of values that nothing on this machine could hold.
  WriteTensor("model.safetensors", "h.0.w", int64_t{1} << 34);
  const auto spec = ReadSafetensors(Path("model.safetensors"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "OnlyHeadersAreRead");
  EXPECT_EQ(spec->root().children(0).children(0).parameters(0).shape(0), int64_t{1} << 34);
}

TEST_F(ModelInputTest, FolderHasOneFileOrAnIndex) {
  EXPECT_THAT(MessageOf(ReadSafetensors(folder_)), HasSubstr("has 0 *.safetensors"));
  WriteTensor("a.safetensors", "a", 3);
  auto spec = ReadSafetensors(folder_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->root().parameters(0).name(), "a");
  WriteTensor("b.safetensors", "b", 3);
  EXPECT_THAT(MessageOf(ReadSafetensors(folder_)), HasSubstr("has 2 *.safetensors"));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"a.safetensors","b":"b.safetensors"}})");
  for (const std::string& path : {folder_, Path("model.safetensors.index.json")}) {
    spec = ReadSafetensors(path);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->root().parameters_size(), 2);
  }
  WriteTensor("model.safetensors", "c", 3);
  spec = ReadSafetensors(folder_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->root().parameters(0).name(), "c");
}

TEST_F(ModelInputTest, ShardThatIsMissingIsNamed) {
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"a.safetensors"}})");
  EXPECT_THAT(MessageOf(ReadSafetensors(folder_)), HasSubstr("a.safetensors: cannot be read"));
}

TEST_F(ModelInputTest, FilesThatAreNoneAreNamed) {
  Write("short.safetensors", "1234567");
  EXPECT_THAT(MessageOf(ReadSafetensors(Path("short.safetensors"))), HasSubstr("has 7 bytes"));
  Write("long.safetensors", std::string(7, '\0') + "\x80{}");
  EXPECT_THAT(MessageOf(ReadSafetensors(Path("long.safetensors"))),
              HasSubstr("says that its header has 9223372036854775808 bytes"));
  EXPECT_THAT(MessageOf(ReadSafetensors(Path("none.safetensors"))), HasSubstr("cannot be read"));
  ASSERT_EQ(mkfifo(Path("pipe.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf(ReadSafetensors(Path("pipe.safetensors"))),
              HasSubstr("is not a regular file"));
}

TEST_F(ModelInputTest, OneOfThreeKinds) {
  Write("config.json", kGpt2);
  WriteTensor("model.safetensors", "w", 3);
  Write("spec.json", R"({"root":{"parameters":[{"name":"w","shape":[3],"dtype":"float32"}]}})");
  EXPECT_TRUE(ReadModel({.hf_config = folder_}).ok());
  EXPECT_TRUE(ReadModel({.safetensors = folder_}).ok());
  EXPECT_TRUE(ReadModel({.spec = Path("spec.json")}).ok());
}

}  // namespace
}  // namespace tessera
