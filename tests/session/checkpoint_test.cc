// Checkpoints of whole jobs with ranks as threads: saved and loaded at other world sizes and wrap
// plans, kept, torn, failing.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_reader.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "tests/session/toy_model.h"
#include "worker/checkpoint_loader.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr double kLearningRate = 0.01;

// "fqn param exp_avg exp_avg_sq" -> the hash, of a checkpoint.
std::map<std::string, std::string> HashesOf(const std::string& path) {
  std::map<std::string, std::string> hashes;
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return hashes;
  const absl::StatusOr<v1::CheckpointHashes> all = HashCheckpoint(*reader);
  EXPECT_TRUE(all.ok()) << all.status();
  if (!all.ok()) return hashes;
  for (const v1::ParameterHash& hash : all->parameters()) {
    hashes[hash.fqn()] = hash.sha256();
    for (int i = 0; i < hash.optimizer_sha256_size(); ++i)
      hashes[absl::StrCat(hash.fqn(), " ", i)] = hash.optimizer_sha256(i);
  }
  return hashes;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = absl::StrCat(::testing::TempDir(), "/", info->name());
    for (char& c : root_) c = c == ' ' ? '_' : c;
    fs::remove_all(root_);
  }

  std::string Dir(const std::string& name) const { return absl::StrCat(root_, "/", name); }

  v1::JobSpec Job(const std::string& dir, const std::string& resume = "none",
                  const std::string& unshard = "slots") const {
    v1::JobSpec job = ToyJob(unshard);
    job.mutable_checkpoint()->set_dir(Dir(dir));
    job.mutable_checkpoint()->set_export_(false);
    job.mutable_checkpoint()->set_resume(resume);
    job.mutable_mesh()->set_max_workers(6);
    return job;
  }

  // Trains to `steps` and finishes. What each rank returned; rank 0's values at the end in `end`.
  static std::vector<absl::Status> Train(const v1::JobSpec& job, int world_size, int64_t steps,
                                         ToyValues* end = nullptr,
                                         ThreadRanks::Options options = {}) {
    absl::StatusOr<std::unique_ptr<ThreadRanks>> ranks =
        ThreadRanks::Create(job, world_size, std::move(options));
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    if (!ranks.ok()) return {ranks.status()};
    return (*ranks)->Run([&](Session& session) -> absl::Status {
      while (session.step() < steps)
        TESSERA_RETURN_IF_ERROR(ToyStep(session, kLearningRate).status());
      TESSERA_ASSIGN_OR_RETURN(const ToyValues values, ToySummonAll(session));
      if (end != nullptr && session.rank() == 0) *end = values;
      return session.Finish();
    });
  }

  static void ExpectOk(const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }

  std::set<std::string> NamesIn(const std::string& dir) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(Dir(dir)))
      names.insert(entry.path().filename().string());
    return names;
  }

  std::string root_;
};

// A job that starts anew after a lost host goes on from its own checkpoints, whoever saved others.
TEST_F(CheckpointTest, TheNewestOfARunIsFoundAmongOthers) {
  v1::JobSpec job = Job("a");
  job.mutable_checkpoint()->set_keep(5);
  const auto of_run = [](const std::string& run) {
    ThreadRanks::Options options;
    options.prepare = [run](int, absl::Span<char>, SessionParts& parts) {
      parts.run = run;
      return absl::OkStatus();
    };
    return options;
  };
  ExpectOk(Train(job, 2, 2, nullptr, of_run("one")));
  ExpectOk(Train(job, 2, 3, nullptr, of_run("one")));
  ExpectOk(Train(job, 2, 4, nullptr, of_run("two")));
  EXPECT_EQ(*NewestOfRun(job.checkpoint(), "one"), Dir("a") + "/step-3");
  EXPECT_EQ(*NewestOfRun(job.checkpoint(), "two"), Dir("a") + "/step-4");
  EXPECT_EQ(*NewestOfRun(job.checkpoint(), "three"), std::nullopt);
  EXPECT_EQ(*NewestOfRun(job.checkpoint(), ""), std::nullopt);
}

struct Other {
  int world_size;
  std::string policy;
  std::string unshard;
};

class ReshardingTest : public CheckpointTest, public ::testing::WithParamInterface<Other> {};

TEST_P(ReshardingTest, OtherMeshesAndPlansHoldTheSameValues) {
  const Other& other = GetParam();
  ExpectOk(Train(Job("four"), 4, 5));
  const auto saved = HashesOf(Dir("four/step-5"));
  // 3 blocks of w, b, c and the embedding, each with two moments.
  EXPECT_EQ(saved.size(), 10 * 3);

  v1::JobSpec job = Job("other", Dir("four/step-5"), other.unshard);
  job.mutable_wrap()->set_policy(other.policy);
  job.mutable_wrap()->clear_wrap_classes();
  ToyValues end;
  ExpectOk(Train(job, other.world_size, 5, &end));
  EXPECT_EQ(HashesOf(Dir("other/step-5")), saved);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReshardingTest,
                         ::testing::Values(Other{1, "none", "slots"}, Other{2, "always", "slots"},
                                           Other{3, "none", "resident"},
                                           Other{6, "always", "resident"},
                                           Other{4, "none", "slots"}),
                         [](const auto& info) {
                           return absl::StrCat("W", info.param.world_size, info.param.policy,
                                               info.param.unshard);
                         });

TEST_F(CheckpointTest, TheSameWorldGoesOnBitForBit) {
  for (const std::string unshard : {"slots", "resident"}) {
    ToyValues whole, resumed;
    ExpectOk(Train(Job("whole", "none", unshard), 3, 8, &whole));
    ExpectOk(Train(Job("half", "none", unshard), 3, 4));
    ExpectOk(Train(Job("half", "auto", unshard), 3, 8, &resumed));
    EXPECT_EQ(resumed, whole);
    EXPECT_EQ(HashesOf(Dir("half/step-8")), HashesOf(Dir("whole/step-8")));
    fs::remove_all(root_);
  }
}

TEST_F(CheckpointTest, SaysWhereTrainingStands) {
  ExpectOk(Train(Job("a"), 2, 3));
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(Dir("a/step-3"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->index().step(), 3);
  EXPECT_EQ(reader->index().optimizer_updates(), 3);
  EXPECT_EQ(reader->index().data_position(), 3 * 12);
  EXPECT_EQ(reader->index().seed(), 1);
  EXPECT_EQ(reader->index().shard_count(), 2);
  EXPECT_EQ(reader->index().optimizer(), "adamw");
  EXPECT_THAT(reader->index().optimizer_arrays(), ElementsAre("exp_avg", "exp_avg_sq"));
  // The embedding, by either of its names.
  ASSERT_NE(reader->Find("emb.weight"), nullptr);
  ASSERT_NE(reader->Find("head.weight"), nullptr);
  EXPECT_EQ(reader->Find("head.weight")->unit, reader->Find("emb.weight")->unit);
}

TEST_F(CheckpointTest, KeepsTheNewestAndRemovesWhatACrashLeft) {
  v1::JobSpec job = Job("a");
  job.mutable_checkpoint()->set_every(2);
  fs::create_directories(Dir("a/step-1.0123.writing"));
  fs::create_directories(Dir("a/other.writing"));
  ExpectOk(Train(job, 2, 7));
  EXPECT_EQ(NamesIn("a"), (std::set<std::string>{"other.writing", "step-6", "step-7"}));
}

TEST_F(CheckpointTest, TheNewestIsTheOneSavedLast) {
  ExpectOk(Train(Job("a"), 2, 9));
  ExpectOk(Train(Job("a"), 2, 3));
  absl::StatusOr<FoundCheckpoints> found = FindCheckpoints(Dir("a"));
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->whole.size(), 2);
  EXPECT_EQ(found->whole[0].step, 3);
  EXPECT_EQ(found->whole[1].step, 9);
  // And takes the place of an older one of its step.
  ExpectOk(Train(Job("a"), 2, 9));
  found = FindCheckpoints(Dir("a"));
  EXPECT_EQ(found->whole[0].step, 9);
  EXPECT_EQ(NamesIn("a"), (std::set<std::string>{"step-3", "step-9"}));
}

TEST_F(CheckpointTest, SaveFalseSavesNothing) {
  v1::JobSpec job = Job("a");
  job.mutable_checkpoint()->set_save(false);
  job.mutable_checkpoint()->set_every(1);
  ExpectOk(Train(job, 2, 2));
  EXPECT_FALSE(fs::exists(Dir("a")));
}

TEST_F(CheckpointTest, ATornOneIsSkippedByAutoAndRefusedByPath) {
  v1::JobSpec job = Job("a");
  job.mutable_checkpoint()->set_every(2);
  ExpectOk(Train(job, 2, 4));
  const std::string file = Dir("a/step-4/shard-00002-of-00002.safetensors");
  fs::resize_file(file, fs::file_size(file) - 1);
  ToyValues end;
  ExpectOk(Train(Job("a", "auto"), 2, 2, &end));
  EXPECT_FALSE(end.empty());
  const std::vector<absl::Status> refused = Train(Job("b", Dir("a/step-4")), 2, 4);
  EXPECT_THAT(std::string(refused[1].message()),
              AllOf(HasSubstr("checkpoint.resume"), HasSubstr("is no whole checkpoint"),
                    HasSubstr("shard-00002-of-00002.safetensors has ")));
  fs::remove(file);
  EXPECT_THAT(std::string(Train(Job("b", Dir("a/step-4")), 2, 4)[0].message()),
              HasSubstr("cannot be read: No such file"));
}

TEST_F(CheckpointTest, AutoWithoutACheckpointStartsAtStepZero) {
  ToyValues none, automatic;
  ExpectOk(Train(Job("a"), 2, 2, &none));
  ExpectOk(Train(Job("b", "auto"), 2, 2, &automatic));
  EXPECT_EQ(automatic, none);
}

TEST_F(CheckpointTest, WhatDoesNotFitIsRefusedByName) {
  ExpectOk(Train(Job("a"), 2, 2));
  const auto refusal = [&](const std::function<void(v1::JobSpec&)>& change) {
    v1::JobSpec job = Job("b", Dir("a/step-2"));
    change(job);
    const std::vector<absl::Status> statuses = Train(job, 1, 3);
    EXPECT_EQ(Field(statuses[0]), "checkpoint.resume");
    return std::string(statuses[0].message());
  };
  const auto parameter = [](v1::JobSpec& job, const std::string& name) -> v1::Parameter* {
    std::vector<v1::Module*> modules = {job.mutable_model()->mutable_spec()->mutable_root()};
    while (!modules.empty()) {
      v1::Module* module = modules.back();
      modules.pop_back();
      for (v1::Parameter& found : *module->mutable_parameters()) {
        if (found.name() == name) return &found;
      }
      for (v1::Module& child : *module->mutable_children()) modules.push_back(&child);
    }
    return nullptr;
  };
  EXPECT_THAT(refusal([&](v1::JobSpec& job) { parameter(job, "w")->set_shape(0, 9); }),
              AllOf(HasSubstr(".w has the shape [7, 5] in the checkpoint and [9, 5] in the model"),
                    HasSubstr("step-2")));
  EXPECT_THAT(refusal([&](v1::JobSpec& job) { parameter(job, "c")->set_name("d"); }),
              AllOf(HasSubstr("has no parameter h."), HasSubstr(".d, which the model has")));
  EXPECT_THAT(refusal([](v1::JobSpec& job) { job.mutable_optimizer()->set_name("sgd"); }),
              HasSubstr("was saved with the optimizer adamw and 2 arrays of state, and the job's "
                        "is sgd with 0"));
}

TEST_F(CheckpointTest, WhatFailsOnOneRankFailsOnAllAndLeavesNothingWhole) {
  v1::JobSpec job = Job("a");
  job.mutable_checkpoint()->set_every(2);
  ThreadRanks::Options options;
  options.writer_fault = [&](int rank, absl::string_view point) {
    if (rank != 1 || point != "checkpoint_write") return;
    for (const std::string& name : NamesIn("a")) fs::remove_all(Dir("a/" + name));
  };
  const std::vector<absl::Status> statuses = Train(job, 3, 100, nullptr, std::move(options));
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the checkpoint of step 2 was not saved: rank "),
                      HasSubstr(Dir("a").substr(0, 20))));
  }
  const absl::StatusOr<FoundCheckpoints> found = FindCheckpoints(Dir("a"));
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->whole, IsEmpty());
}

TEST_F(CheckpointTest, ADirectoryThatCannotBeMadeIsNamed) {
  fs::create_directories(root_);
  std::ofstream(Dir("a")) << "a file";
  for (const absl::Status& status : Train(Job("a"), 2, 1)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: cannot make "));
  }
}

}  // namespace
}  // namespace tessera
