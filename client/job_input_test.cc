#include "client/job_input.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string WriteFile(const std::string& name, const std::string& text) {
  std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(JobInputTest, AppliesSetsInOrderAndThenWorkers) {
  const std::string file =
      WriteFile("job.json", R"({"name": "a", "steps": 5, "mesh": {"min_workers": 1}})");
  const auto spec =
      LoadJob({.file = file, .sets = {"steps=7", "name=b", "steps=9", "data=a=b"}, .workers = 3});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "b");
  EXPECT_EQ(spec->steps(), 9);
  EXPECT_EQ(spec->data(), "a=b");
  EXPECT_EQ(spec->mesh().min_workers(), 3);
  EXPECT_EQ(spec->mesh().max_workers(), 3);
  EXPECT_FALSE(spec->has_seed());
}

TEST(JobInputTest, NamesTheFlagOfABadSet) {
  const std::string file = WriteFile("job.json", R"({"name": "a"})");
  for (const char* set : {"steps", "=5", "nothing.of.it=5", "steps=many"}) {
    const auto spec = LoadJob({.file = file, .sets = {set}});
    EXPECT_TRUE(absl::IsInvalidArgument(spec.status())) << set;
    EXPECT_THAT(std::string(spec.status().message()), StartsWith("--set: ")) << set;
  }
}

TEST(JobInputTest, ReadsTheModelFile) {
  const std::string model = WriteFile("model.json", R"({"name": "m", "root": {"class_name": "M",
      "parameters": [{"name": "w", "shape": [4], "dtype": "float32"}]}})");
  const std::string file =
      WriteFile("job.json", absl::StrCat(R"({"name": "a", "model": {"file": ")", model, R"("}})"));
  const auto spec = LoadJob({.file = file});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->model().has_file());
  EXPECT_EQ(spec->model().spec().root().parameters(0).name(), "w");
}

TEST(JobInputTest, RefusesAModelFileBesideAnotherModel) {
  const auto spec =
      LoadJob({.file = WriteFile("job.json", R"({"model": {"builtin": "gpt", "file": "x"}})")});
  EXPECT_TRUE(absl::IsInvalidArgument(spec.status()));
  EXPECT_EQ(Field(spec.status()), "model.file");
}

TEST(CheckPathsOfSubmitTest, RefusesPathsThatAreRelativeToAWorker) {
  v1::JobSpec spec;
  EXPECT_TRUE(CheckPathsOfSubmit(spec).ok());
  spec.set_data("");
  spec.mutable_checkpoint()->set_dir("/scratch/out");
  EXPECT_TRUE(CheckPathsOfSubmit(spec).ok());
  spec.set_data("/data/text.txt");
  EXPECT_TRUE(CheckPathsOfSubmit(spec).ok());
  spec.set_data("text.txt");
  EXPECT_EQ(Field(CheckPathsOfSubmit(spec)), "data");
  spec.clear_data();
  spec.mutable_checkpoint()->set_dir("out");
  EXPECT_EQ(CheckPathsOfSubmit(spec).message(),
            "checkpoint.dir: \"out\" is a relative path, and workers may run anywhere; give an "
            "absolute path that they see");
}

TEST(JobInputTest, NamesTheFlagOfAWrongChangeOnce) {
  const std::string file = WriteFile("job.json", R"({"name": "gpt"})");
  EXPECT_EQ(LoadJob({.file = file, .sets = {"steps=1.5"}}).status().message(),
            "--set: steps: 1.5 is not an integer");
  EXPECT_EQ(LoadJob({.file = file, .sets = {"wrap={\"often\": 1}"}}).status().message(),
            "--set: wrap.often: unknown key; a JobSpec has no such field");
}

TEST(ReadTextFileTest, NamesTheFileThatCannotBeRead) {
  const std::string missing = testing::TempDir() + "/missing.json";
  EXPECT_EQ(ReadTextFile(missing).status().message(),
            absl::StrCat(missing, ": cannot be read: No such file or directory"));
  EXPECT_THAT(std::string(ReadTextFile(testing::TempDir()).status().message()),
              HasSubstr("is not a regular file"));
  EXPECT_THAT(std::string(ReadTextFile(WriteFile("empty.json", "")).status().message()),
              HasSubstr("is empty"));
}

TEST(ReadTextFileTest, DoesNotWaitForAPipe) {
  const std::string pipe = testing::TempDir() + "/pipe.json";
  unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadTextFile(pipe).status().message()),
              HasSubstr("is not a regular file"));
}

TEST(CheckWritableDirectoryTest, LooksAtTheNearestParentThatExists) {
  const std::string base = testing::TempDir() + "/writable";
  std::filesystem::create_directories(base);
  EXPECT_TRUE(CheckWritableDirectory("checkpoint.dir", base).ok());
  EXPECT_TRUE(CheckWritableDirectory("checkpoint.dir", base + "/a/b").ok());
  EXPECT_FALSE(std::filesystem::exists(base + "/a"));
  const std::string file = WriteFile("plain", "x");
  for (const std::string& path : {file, file + "/below"}) {
    const absl::Status status = CheckWritableDirectory("checkpoint.dir", path);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path;
    EXPECT_EQ(Field(status), "checkpoint.dir");
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }
}

}  // namespace
}  // namespace tessera
