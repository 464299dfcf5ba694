#include "common/file_roots.h"

#include <filesystem>
#include <string>

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class FileRootsTest : public testing::Test {
 protected:
  FileRootsTest() {
    fs::remove_all(base_);
    fs::create_directories(base_ / "data");
    fs::create_directories(base_ / "database");
    fs::create_directories(base_ / "checkpoints");
    fs::create_directory_symlink(base_ / "database", base_ / "data" / "out");
    fs::create_directory_symlink(base_ / "data", base_ / "in");
    roots_ = {.data = Path("data"), .checkpoints = Path("checkpoints")};
  }
  ~FileRootsTest() override { fs::remove_all(base_); }

  std::string Path(const std::string& below) const { return (base_ / below).string(); }

  const fs::path base_ = fs::path(testing::TempDir()) / "file_roots_test";
  FileRoots roots_;
};

TEST_F(FileRootsTest, WithoutRootsEverythingIsAllowed) {
  EXPECT_TRUE(FileRoots().CheckData("anything").ok());
  EXPECT_TRUE(FileRoots().CheckImport("/etc/passwd").ok());
  EXPECT_TRUE(FileRoots().CheckCheckpoint("checkpoint.dir", "../x").ok());
}

TEST_F(FileRootsTest, PathsAreComparedResolved) {
  for (const char* good : {"data", "data/a", "data/a/../b", "data/./a", "in/a", "data/no/such"}) {
    EXPECT_TRUE(roots_.CheckData(Path(good)).ok()) << good;
  }
  // "database" begins with "data".
  for (const char* bad : {"database/a", "data/../database/a", "data/out/a", "data/out/no/such",
                          "checkpoints/a", "data/..", ""}) {
    EXPECT_EQ(Field(roots_.CheckData(Path(bad))), "data") << bad;
  }
  EXPECT_EQ(Field(roots_.CheckData("a")), "data");
  EXPECT_TRUE(roots_.CheckData("").ok());  // the default text
}

TEST_F(FileRootsTest, ImportsMayBeInEither) {
  EXPECT_TRUE(roots_.CheckImport(Path("data/a")).ok());
  EXPECT_TRUE(roots_.CheckImport(Path("checkpoints/a")).ok());
  EXPECT_EQ(Field(roots_.CheckImport(Path("database/a"))), "checkpoint.import");
}

TEST_F(FileRootsTest, AJobsPathsAreAllLookedAt) {
  v1::JobSpec spec;
  EXPECT_TRUE(roots_.CheckJob(spec).ok());
  v1::CheckpointSpec* checkpoint = spec.mutable_checkpoint();
  spec.set_data(Path("data/a"));
  checkpoint->set_dir(Path("checkpoints/a"));
  checkpoint->set_resume("auto");
  checkpoint->set_import(Path("data/a"));
  EXPECT_TRUE(roots_.CheckJob(spec).ok());
  checkpoint->set_resume(Path("database"));
  EXPECT_EQ(Field(roots_.CheckJob(spec)), "checkpoint.resume");
  checkpoint->set_import(Path("database"));
  EXPECT_EQ(Field(roots_.CheckJob(spec)), "checkpoint.import");
  checkpoint->set_dir(Path("database"));
  EXPECT_EQ(Field(roots_.CheckJob(spec)), "checkpoint.dir");
  spec.set_data(Path("database"));
  EXPECT_EQ(Field(roots_.CheckJob(spec)), "data");
}

TEST_F(FileRootsTest, RootsAreFolders) {
  EXPECT_TRUE(roots_.Check().ok());
  EXPECT_EQ(Field(FileRoots{.data = Path("none")}.Check()), "--data_root");
  EXPECT_EQ(Field(FileRoots{.checkpoints = "checkpoints"}.Check()), "--checkpoint_root");
}

}  // namespace
}  // namespace tessera
