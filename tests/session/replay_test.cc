// The workload replay with ranks as threads: every strategy, dtype and mode, checked by the
// workload itself element by element; and that it catches what it is there to catch.
#include "worker/workloads/replay.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/thread_ranks.h"
#include "worker/fault_points.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// Units h.0 and h.1, which has a unit inner below it, h.frozen, and the root. In them: a parameter
// of fewer elements than ranks, frozen ones, one of them beside others, and one tied to another.
constexpr char kModel[] = R"({"name": "mixed", "root": {"class_name": "Model", "children": [
  {"name": "emb", "class_name": "Embedding", "parameters": [
    {"name": "weight", "shape": [11, 7], "dtype": "$dtype"}]},
  {"name": "h", "class_name": "ModuleList", "children": [
    {"name": "0", "class_name": "Block", "parameters": [
      {"name": "w", "shape": [13, 9], "dtype": "$dtype"},
      {"name": "b", "shape": [3], "dtype": "$dtype", "init": {"kind": "ones"}},
      {"name": "fixed", "shape": [5], "dtype": "$dtype", "requires_grad": false},
      {"name": "c", "shape": [2, 1], "dtype": "$dtype", "init": {"kind": "uniform"}}]},
    {"name": "1", "class_name": "Block",
     "parameters": [{"name": "w", "shape": [6, 6], "dtype": "$dtype"}],
     "children": [{"name": "inner", "class_name": "Block", "parameters": [
       {"name": "w", "shape": [40], "dtype": "$dtype"}]}]},
    {"name": "frozen", "class_name": "Block", "parameters": [
      {"name": "w", "shape": [17], "dtype": "$dtype", "requires_grad": false}]}]},
  {"name": "head", "class_name": "Linear", "parameters": [
    {"name": "weight", "shape": [11, 7], "dtype": "$dtype", "tied_to": "emb.weight"},
    {"name": "bias", "shape": [11], "dtype": "$dtype"}]}]}})";

// A job of that model, with `more` of the job file: a JSON object.
v1::JobSpec Job(const std::string& more, const std::string& model_dtype = "float32") {
  std::string model = kModel;
  for (size_t at = 0; (at = model.find("$dtype")) != std::string::npos;) {
    model.replace(at, 6, model_dtype);
  }
  auto job = ParseJobSpec(
      absl::StrCat(R"({"name": "replay", "workload": "replay", "steps": 4, "global_batch": 48,
                       "eval_every": 3, "mesh": {"min_workers": 1, "max_workers": 4},
                       "wrap": {"policy": "class", "wrap_classes": ["Block"],
                                "shard_align_bytes": 16},
                       "model": {"spec": )",
                   model, "}}"),
      "job.json");
  EXPECT_TRUE(job.ok()) << job.status();
  auto over = ParseJobSpec(more.empty() ? "{}" : more, "more.json");
  EXPECT_TRUE(over.ok()) << over.status();
  job->MergeFrom(*over);
  return *job;
}

std::vector<absl::Status> Replay(const v1::JobSpec& job, int world_size,
                                 ThreadRanks::Options options = {},
                                 std::vector<v1::Progress>* progress = nullptr) {
  auto ranks = ThreadRanks::Create(job, world_size, std::move(options));
  if (!ranks.ok()) return {ranks.status()};
  return (*ranks)->Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(RunReplay(session, [&](const v1::Progress& said) {
      if (progress != nullptr) progress->push_back(said);
    }));
    return session.Finish();
  });
}

void ExpectRuns(const v1::JobSpec& job, int world_size) {
  for (const absl::Status& status : Replay(job, world_size)) EXPECT_TRUE(status.ok()) << status;
}

// Each strategy as a job file has it, and the world sizes that it is for.
struct Strategy {
  std::string name;
  std::string mesh;
  std::vector<int> world_sizes;
};
const std::vector<Strategy>& Strategies() {
  static const auto& strategies = *new std::vector<Strategy>{
      {"full_shard", R"("strategy": "full_shard")", {1, 2, 3, 4}},
      {"shard_grad_op", R"("strategy": "shard_grad_op")", {1, 2, 3, 4}},
      {"no_shard", R"("strategy": "no_shard")", {1, 2, 3, 4}},
      {"hybrid_shard_2x2", R"("strategy": "hybrid_shard", "replicas": 2)", {4}},
      {"hybrid_shard_4x1", R"("strategy": "hybrid_shard", "replicas": 4)", {4}},
      {"hybrid_shard_zero2_2x2", R"("strategy": "hybrid_shard_zero2", "replicas": 2)", {4}},
      {"full_shard_1x4", R"("strategy": "full_shard", "replicas": 1)", {4}},
      {"reshard_group_2", R"("reshard_group": 2)", {2, 4}},
      {"reshard_group_1", R"("reshard_group": 1)", {3}},
  };
  return strategies;
}

// The model's dtype, param_dtype and reduce_dtype.
struct Dtypes {
  std::string model, param, reduce;
};
const std::vector<Dtypes>& AllDtypes() {
  static const auto& dtypes = *new std::vector<Dtypes>{
      {"float32", "", ""},
      {"float32", "bfloat16", ""},
      {"float32", "float16", ""},
      {"float32", "bfloat16", "float32"},
      {"float32", "float16", "float32"},
      {"float32", "bfloat16", "float16"},
      {"float32", "float32", "bfloat16"},
      {"float32", "float32", "float16"},
      {"float64", "", ""},
      {"float64", "float32", "float64"},
      {"float64", "bfloat16", "float32"},
      {"bfloat16", "", ""},
      {"bfloat16", "", "float32"},
      {"bfloat16", "float32", "bfloat16"},
      {"float16", "", ""},
  };
  return dtypes;
}

class ReplayMatrixTest : public ::testing::TestWithParam<std::tuple<Strategy, std::string>> {};

// In each: every dtype, with micro-batches that are reduced each, and once.
TEST_P(ReplayMatrixTest, EveryElementOfEveryStepIsExact) {
  const auto& [strategy, unshard] = GetParam();
  for (const int world_size : strategy.world_sizes) {
    for (const Dtypes& dtypes : AllDtypes()) {
      for (const bool unsynchronized : {false, true}) {
        const std::string more = absl::StrCat(
            R"({"micro_batches": 2, "mesh": {)", strategy.mesh, R"(}, "memory": {"unshard": ")",
            unshard, R"(", "accumulate_unsynchronized": )", unsynchronized ? "true" : "false",
            R"(}, "mixed_precision": {"param_dtype": ")", dtypes.param, R"(", "reduce_dtype": ")",
            dtypes.reduce, R"("}})");
        SCOPED_TRACE(absl::StrCat(world_size, " ranks, ", more));
        ExpectRuns(Job(more, dtypes.model), world_size);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, ReplayMatrixTest,
                         ::testing::Combine(::testing::ValuesIn(Strategies()),
                                            ::testing::Values("slots", "resident")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name, "_",
                                               std::get<1>(info.param));
                         });

TEST(ReplayTest, UnitsAreUsedMoreThanOnce) {
  for (const char* unshard : {"slots", "resident"}) {
    ExpectRuns(Job(absl::StrCat(
                   R"({"replay": {"uses": 3, "compute_us": 5}, "micro_batches": 2,
                       "mixed_precision": {"param_dtype": "bfloat16"},
                       "memory": {"unshard": ")",
                   unshard, R"("}})")),
               3);
  }
}

TEST(ReplayTest, TakesAnyPlan) {
  for (const char* policy : {"always", "size", "none"}) {
    v1::JobSpec job = Job("");
    job.mutable_wrap()->clear_wrap_classes();
    job.mutable_wrap()->set_policy(policy);
    if (job.wrap().policy() == "size") job.mutable_wrap()->set_min_params(50);
    ExpectRuns(job, 2);
  }
  v1::JobSpec gpt = Job("");
  gpt.mutable_wrap()->Clear();
  gpt.mutable_model()->Clear();
  gpt.mutable_model()->set_layers(2);
  gpt.mutable_model()->set_width(32);
  ExpectRuns(gpt, 2);
}

TEST(ReplayTest, ReportsProgress) {
  v1::JobSpec job = Job("");
  job.set_steps(45);
  std::vector<v1::Progress> progress;
  for (const absl::Status& status : Replay(job, 2, {}, &progress))
    EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(progress.size(), 3u);
  EXPECT_EQ(progress[0].step(), 20);
  EXPECT_EQ(progress[2].step(), 45);
  EXPECT_EQ(progress[2].steps(), 45);
}

// A rank whose session gets the faults of `text`.
ThreadRanks::Options Faults(const std::string& text) {
  ThreadRanks::Options options;
  options.prepare = [text](int rank, absl::Span<char>, SessionParts& parts) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(FaultPoints faults, FaultPoints::Parse(text, rank));
    *parts.faults = std::move(faults);
    return absl::OkStatus();
  };
  return options;
}

TEST(ReplayTest, OneBitOfOneReducedElementIsCaught) {
  for (const char* precision : {R"({})", R"({"mixed_precision": {"param_dtype": "bfloat16"}})"}) {
    const std::vector<absl::Status> statuses =
        Replay(Job(precision), 2, Faults("rank=1,point=reduced,step=3,action=spoil"));
    ASSERT_EQ(statuses.size(), 2u);
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDataLoss) << statuses[1];
    EXPECT_THAT(statuses[1].message(), HasSubstr("rank 1: gradient of \"h.0.w\" in unit h.0"));
    EXPECT_THAT(statuses[1].message(), HasSubstr("step 3: expected"));
    EXPECT_FALSE(statuses[0].ok());
  }
}

TEST(ReplayTest, OneWrongParameterIsCaught) {
  ThreadRanks::Options options;
  options.prepare = [](int rank, absl::Span<char>, SessionParts& parts) -> absl::Status {
    if (rank == 1) parts.spec.set_seed(2);  // what this rank holds the parameters against
    return absl::OkStatus();
  };
  const std::vector<absl::Status> statuses = Replay(Job(""), 2, std::move(options));
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDataLoss) << statuses[1];
  EXPECT_THAT(statuses[1].message(), HasSubstr("as the seed makes it"));
}

TEST(ReplayTest, RefusesWhatNothingIsExactIn) {
  v1::JobSpec job = Job(R"({"mixed_precision": {"param_dtype": "bfloat16"}})");
  job.set_micro_batches(48);
  job.mutable_mesh()->set_max_workers(1);
  job.mutable_replay()->set_uses(16);
  const std::vector<absl::Status> statuses = Replay(job, 1);
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInvalidArgument) << statuses[0];
  EXPECT_THAT(statuses[0].message(), HasSubstr("leaves no gradients"));
}

}  // namespace
}  // namespace tessera
