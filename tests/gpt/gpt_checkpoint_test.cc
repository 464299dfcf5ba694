// The workload gpt over checkpoints, ranks as threads: saved by 4 ranks, resumed by any number
// under other wrap plans; and values imported from safetensors files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_reader.h"
#include "common/float_bits.h"
#include "common/safetensors_header.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/workloads/gpt.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

constexpr int64_t kSaved = 5;   // the step that is saved
constexpr int64_t kSteps = 25;  // of all

using Losses = std::map<int64_t, double>;  // by step

// Warm-up and schedule do not depend on the number of steps, so that a job may be cut in two.
v1::JobSpec Job(const std::string& dir) {
  v1::JobSpec job;
  job.set_name("gpt");
  job.mutable_model()->set_layers(2);
  job.mutable_model()->set_width(32);
  job.mutable_model()->set_heads(2);
  job.mutable_model()->set_context(16);
  job.set_global_batch(12);
  job.set_steps(kSteps);
  job.set_eval_every(1);  // a line of progress each step
  job.mutable_optimizer()->set_schedule("constant");
  job.mutable_mesh()->set_min_workers(1);
  job.mutable_mesh()->set_max_workers(6);
  job.mutable_checkpoint()->set_dir(dir);
  job.mutable_checkpoint()->set_export_(false);
  return job;
}

absl::StatusOr<Losses> Train(const v1::JobSpec& job, int world_size) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadRanks> ranks,
                           ThreadRanks::Create(job, world_size, {}));
  Losses losses;
  const std::vector<absl::Status> statuses = ranks->Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RunGpt(
        session, [&](const v1::Progress& progress) { losses[progress.step()] = progress.loss(); }));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) TESSERA_RETURN_IF_ERROR(status);
  return losses;
}

std::string HashesOf(const std::string& path) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return "";
  absl::StatusOr<v1::CheckpointHashes> hashes = HashCheckpoint(*reader);
  EXPECT_TRUE(hashes.ok()) << hashes.status();
  hashes->clear_path();
  return hashes->SerializeAsString();
}

class GptCheckpointTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new std::string(absl::StrCat(::testing::TempDir(), "/gpt_checkpoint"));
    fs::remove_all(*root_);
    whole_ = new Losses(*Train(Job(Dir("whole")), 4));
    v1::JobSpec first = Job(Dir("four"));
    first.set_steps(kSaved);
    ASSERT_TRUE(Train(first, 4).ok());
  }
  static std::string Dir(const std::string& name) { return absl::StrCat(*root_, "/", name); }

  static std::string* root_;
  static Losses* whole_;  // of 4 ranks, uninterrupted
};
std::string* GptCheckpointTest::root_ = nullptr;
Losses* GptCheckpointTest::whole_ = nullptr;

TEST_F(GptCheckpointTest, TheSameWorldGivesTheSameBits) {
  v1::JobSpec job = Job(Dir("same"));
  job.mutable_checkpoint()->set_resume(Dir("four/step-5"));
  const absl::StatusOr<Losses> losses = Train(job, 4);
  ASSERT_TRUE(losses.ok()) << losses.status();
  ASSERT_EQ(losses->size(), kSteps - kSaved);
  for (const auto& [step, loss] : *losses) EXPECT_EQ(loss, whole_->at(step)) << step;
  EXPECT_EQ(HashesOf(Dir("same/step-25")), HashesOf(Dir("whole/step-25")));
}

TEST_F(GptCheckpointTest, OtherWorldsAndPlansGoOnAlike) {
  const std::string saved = HashesOf(Dir("four/step-5"));
  // All parameters in the root; all blocks in one unit; each block a unit, as those that saved.
  const std::vector<std::pair<int, std::string>> others = {
      {1, ""}, {2, ""}, {3, "ModuleList"}, {6, "Block"}};
  for (const auto& [world_size, wrapped] : others) {
    const std::string dir = Dir(absl::StrCat("other-", world_size));
    v1::JobSpec job = Job(dir);
    job.mutable_wrap()->set_policy(wrapped.empty() ? "none" : "class");
    if (!wrapped.empty()) job.mutable_wrap()->add_wrap_classes(wrapped);
    job.mutable_checkpoint()->set_resume(Dir("four/step-5"));
    // What was loaded, saved anew.
    v1::JobSpec nothing = job;
    nothing.set_steps(kSaved);
    const absl::StatusOr<Losses> none = Train(nothing, world_size);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_TRUE(none->empty());
    EXPECT_EQ(HashesOf(dir + "/step-5"), saved) << world_size;

    const absl::StatusOr<Losses> losses = Train(job, world_size);
    ASSERT_TRUE(losses.ok()) << losses.status();
    ASSERT_EQ(losses->size(), kSteps - kSaved);
    double worst = 0;
    for (const auto& [step, loss] : *losses)
      worst = std::max(worst, std::abs(loss - whole_->at(step)) / whole_->at(step));
    EXPECT_LT(worst, 1e-5) << world_size;
    RecordProperty(absl::StrCat("worst_relative_", world_size), absl::StrCat(worst));
  }
}

TEST_F(GptCheckpointTest, AFinishedJobResumedEndsAtOnce) {
  v1::JobSpec job = Job(Dir("whole"));
  job.mutable_checkpoint()->set_resume("auto");
  const absl::StatusOr<Losses> losses = Train(job, 2);
  ASSERT_TRUE(losses.ok()) << losses.status();
  EXPECT_TRUE(losses->empty());
}

// Tensors of a model in one file, as another program would have saved it.
class ImportTest : public GptCheckpointTest {
 protected:
  // The parameters of the model at step 5, named "transformer." + FQN and converted to `dtype`.
  static std::string WriteModel(
      const std::string& name, DType dtype,
      const std::function<void(std::vector<SafetensorsTensor>&)>& change) {
    CheckpointReader reader = *CheckpointReader::Open(Dir("four/step-5"));
    std::vector<SafetensorsTensor> tensors;
    std::string data;
    for (const v1::CheckpointUnit& unit : reader.index().units()) {
      for (const v1::CheckpointParameter& parameter : unit.parameters()) {
        SafetensorsTensor& tensor = tensors.emplace_back();
        tensor.name = absl::StrCat("transformer.", parameter.fqn());
        tensor.dtype = dtype;
        tensor.shape.assign(parameter.shape().begin(), parameter.shape().end());
        std::vector<float> values(static_cast<size_t>(NumelOf(parameter)));
        EXPECT_TRUE(reader
                        .Read(*reader.Find(parameter.fqn()), kParameterArray, 0, NumelOf(parameter),
                              reinterpret_cast<char*>(values.data()))
                        .ok());
        for (const float value : values) Append(dtype, value, &data);
      }
    }
    change(tensors);
    const std::string path = Dir(name);
    fs::create_directories(*root_);
    std::ofstream(path, std::ios::binary) << SafetensorsStart(tensors, {}) << data;
    return path;
  }

  static void Append(DType dtype, float value, std::string* data) {
    const double wide = value;
    const uint16_t half = BFloat16FromFloat(value);
    if (dtype == v1::FLOAT64) data->append(reinterpret_cast<const char*>(&wide), sizeof(wide));
    if (dtype == v1::FLOAT32) data->append(reinterpret_cast<const char*>(&value), sizeof(value));
    if (dtype == v1::BFLOAT16) data->append(reinterpret_cast<const char*>(&half), sizeof(half));
  }

  static v1::JobSpec Importing(const std::string& dir, const std::string& path) {
    v1::JobSpec job = Job(Dir(dir));
    job.set_steps(1);
    job.mutable_checkpoint()->set_import(path);
    v1::NameRule* rule = job.mutable_checkpoint()->add_import_names();
    rule->set_from(R"(transformer\.(.*))");
    rule->set_to(R"(\1)");
    return job;
  }

  // A tensor that needs no data.
  static void AddEmpty(const std::string& name, std::vector<SafetensorsTensor>* tensors) {
    SafetensorsTensor& tensor = tensors->emplace_back();
    tensor.name = name;
    tensor.dtype = v1::FLOAT32;
    tensor.shape = {0};
  }

  static std::string Refusal(const std::string& path) {
    return std::string(Train(Importing("refused", path), 2).status().message());
  }
};

TEST_F(ImportTest, ValuesOfOtherDtypesAreTheOnesToStartFrom) {
  const auto unchanged = [](std::vector<SafetensorsTensor>&) {};
  const absl::StatusOr<Losses> exact =
      Train(Importing("f32", WriteModel("f32.safetensors", v1::FLOAT32, unchanged)), 3);
  const absl::StatusOr<Losses> wide =
      Train(Importing("f64", WriteModel("f64.safetensors", v1::FLOAT64, unchanged)), 3);
  const absl::StatusOr<Losses> half =
      Train(Importing("bf16", WriteModel("bf16.safetensors", v1::BFLOAT16, unchanged)), 3);
  ASSERT_TRUE(exact.ok() && wide.ok() && half.ok()) << exact.status() << wide.status();
  // Not the loss of a model that nobody has trained, and the same whatever holds the values.
  EXPECT_LT(exact->at(1), whole_->at(1) - 0.01);
  EXPECT_EQ(wide->at(1), exact->at(1));
  EXPECT_NEAR(half->at(1), exact->at(1), 0.01);
  EXPECT_NE(half->at(1), exact->at(1));
  EXPECT_EQ(HashesOf(Dir("f64/step-1")), HashesOf(Dir("f32/step-1")));
}

TEST_F(ImportTest, WhatDoesNotFitIsRefusedByName) {
  const auto with = [](const std::function<void(std::vector<SafetensorsTensor>&)>& change) {
    return Refusal(WriteModel("m.safetensors", v1::FLOAT32, change));
  };
  EXPECT_THAT(with([](auto& tensors) { tensors[0].name = "transformer.h.0.other"; }),
              AllOf(HasSubstr("checkpoint.import: "), HasSubstr("m.safetensors has no tensor h.0."),
                    HasSubstr("which the model has")));
  EXPECT_THAT(with([](auto& tensors) {
                for (SafetensorsTensor& tensor : tensors) {
                  if (tensor.name == "transformer.wte.weight")
                    std::swap(tensor.shape[0], tensor.shape[1]);
                }
              }),
              HasSubstr("has wte.weight (transformer.wte.weight) with the shape [32, 256], and the "
                        "model's is [256, 32]"));
  EXPECT_THAT(with([](auto& tensors) { AddEmpty("h.0.attn.mask", &tensors); }),
              HasSubstr("has the tensor h.0.attn.mask, which is no parameter of the model"));
  EXPECT_THAT(with([](auto& tensors) { AddEmpty("wte.weight", &tensors); }),
              HasSubstr("has two tensors that are called wte.weight"));
}

}  // namespace
}  // namespace tessera
