#include "common/text_data.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

class TextDataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/text_data_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  void ExpectRefused(const std::string& path, int64_t batch, int64_t context,
                     const std::string& words) {
    const absl::StatusOr<TextData> text = LoadText(path, batch, context);
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Field(text.status()), "data");
    const std::string message(text.status().message());
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }

  std::string folder_;
};

TEST_F(TextDataTest, HoldsOutLastTenthRoundedDown) {
  const auto text = LoadText(Write("a", "0123456789abcdefghijABCDEFGHI"), 2, 1);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->train, "0123456789abcdefghijABCDEFG");
  EXPECT_EQ(text->held_out, "HI");
}

TEST_F(TextDataTest, FolderInByteOrderSkippingLinksAndFolders) {
  Write("b", "second ");
  Write("B", "first ");
  Write("\xc3\xa9", "last");
  Write("b-2", "third ");
  ASSERT_EQ(symlink("b", (folder_ + "/a").c_str()), 0);
  std::filesystem::create_directory(folder_ + "/c");
  const auto text = ReadTextFolder(folder_);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "first second third last");
}

TEST_F(TextDataTest, KeepsEveryByte) {
  std::string bytes(3'000'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  const auto text = LoadText(Write("bytes", bytes), 24, 64);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->train + text->held_out, bytes);
  EXPECT_EQ(text->held_out.size(), 300'000u);
}

TEST_F(TextDataTest, DefaultIsTheLicenses) {
  const auto text = LoadText("", 24, 64);
  ASSERT_TRUE(text.ok()) << text.status();
  // Apache-2.0 comes first in byte order on every Debian.
  EXPECT_NE(text->train.substr(0, 200).find("Apache License"), std::string::npos);
}

TEST_F(TextDataTest, RefusesMissingFile) {
  ExpectRefused(folder_ + "/none", 1, 1, "does not exist");
}

TEST_F(TextDataTest, RefusesFolder) { ExpectRefused(folder_, 1, 1, "not a file"); }

TEST_F(TextDataTest, RefusesEmptyFile) { ExpectRefused(Write("empty", ""), 1, 1, "is empty"); }

TEST_F(TextDataTest, RefusesUnreadableFile) {
  const std::string path = Write("secret", "text");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "running as root, who may read everything";
  ExpectRefused(path, 1, 1, "cannot be read");
}

// 24 sequences of 65 bytes are 1,560.
TEST_F(TextDataTest, RefusesTextShorterThanBatch) {
  ExpectRefused(Write("short", std::string(1559, 'x')), 24, 64, "fewer than one batch");
  EXPECT_TRUE(LoadText(Write("enough", std::string(1560, 'x')), 24, 64).ok());
}

// A held-out tenth of at least 65 bytes needs 650.
TEST_F(TextDataTest, RefusesTextWhoseTenthHasNoSequence) {
  ExpectRefused(Write("short", std::string(649, 'x')), 1, 64, "held out");
  EXPECT_TRUE(LoadText(Write("enough", std::string(650, 'x')), 1, 64).ok());
}

}  // namespace
}  // namespace tessera
