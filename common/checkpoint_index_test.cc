#include "common/checkpoint_index.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One unit of shards of 8: a [2, 3] at 0, b [7] at 8, so that shard 1 has b and shard 0 a.
v1::CheckpointIndex Index(int shard_count = 2) {
  v1::CheckpointIndex index;
  index.set_version(kCheckpointVersion);
  index.set_step(5);
  index.set_shard_count(shard_count);
  index.add_optimizer_arrays("momentum_buffer");
  v1::CheckpointUnit& unit = *index.add_units();
  unit.set_fqn("u");
  unit.set_dtype(v1::BFLOAT16);
  unit.set_optimizer_dtype(v1::FLOAT32);
  unit.set_shard_numel(16 / shard_count);
  v1::CheckpointParameter& a = *unit.add_parameters();
  a.set_fqn("u.a");
  a.add_shape(2);
  a.add_shape(3);
  v1::CheckpointParameter& b = *unit.add_parameters();
  b.set_fqn("u.b");
  b.add_tied_fqns("v.b");
  b.add_shape(7);
  b.set_offset(8);
  for (int shard = 0; shard < shard_count; ++shard) {
    v1::CheckpointFile& file = *index.add_files();
    file.set_name(CheckpointShardFile(shard, shard_count));
    file.set_bytes(100);
  }
  return index;
}

TEST(CheckpointIndexTest, NamesOfDirectoriesAndFiles) {
  EXPECT_EQ(CheckpointDirectory(600), "step-600");
  EXPECT_EQ(CheckpointStep("step-600"), 600);
  for (const char* other : {"step-", "step-06", "step-6.ab.writing", "step--6", "step-6x", "export",
                            "step-99999999999999999999"}) {
    EXPECT_FALSE(CheckpointStep(other).has_value()) << other;
  }
  EXPECT_EQ(CheckpointShardFile(0, 2), "shard-00001-of-00002.safetensors");
  EXPECT_EQ(CheckpointTensor(Index(), kParameterArray, "u.a"), "param:u.a");
  EXPECT_EQ(CheckpointTensor(Index(), 0, "u.a"), "momentum_buffer:u.a");
  EXPECT_THAT(OptimizerArrayNames("adamw", 2), ElementsAre("exp_avg", "exp_avg_sq"));
  EXPECT_THAT(OptimizerArrayNames("sgd", 0), ElementsAre());
}

TEST(CheckpointIndexTest, AParameterIsCutAnywhere) {
  const v1::CheckpointIndex index = Index(4);  // shards of 4
  std::vector<std::string> slices;
  for (int shard = 0; shard < 4; ++shard) {
    for (const ShardRecord& record : CheckpointSlices(index.units(0), shard)) {
      slices.push_back(std::to_string(shard) + (record.parameter == 0 ? " a " : " b ") +
                       std::to_string(record.begin) + ":" + std::to_string(record.end));
    }
  }
  EXPECT_THAT(slices, ElementsAre("0 a 0:4", "1 a 4:6", "2 b 0:4", "3 b 4:7"));
}

TEST(CheckpointIndexTest, AShardBeginsWithASafetensorsHeader) {
  const std::string start = CheckpointShardStart(Index(), 0);
  EXPECT_EQ(start.size() % 8, 0);
  EXPECT_EQ(static_cast<size_t>(static_cast<unsigned char>(start[0])) +
                256 * static_cast<unsigned char>(start[1]) + 8,
            start.size());
  // 6 elements of bfloat16, then 6 of float32.
  EXPECT_THAT(start,
              HasSubstr(R"("param:u.a":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]})"));
  EXPECT_THAT(start, HasSubstr(R"("momentum_buffer:u.a":{"dtype":"F32","shape":[6],)"
                               R"("data_offsets":[12,36]})"));
  EXPECT_THAT(start, HasSubstr(R"("param:u.a":"0:6 of [2,3]")"));
  EXPECT_THAT(start, ::testing::Not(HasSubstr("u.b")));
}

TEST(CheckpointIndexTest, JsonComesBackAsItWas) {
  const v1::CheckpointIndex index = Index();
  const auto again = ParseCheckpointIndex(CheckpointIndexJson(index), "index.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->DebugString(), index.DebugString());
}

TEST(CheckpointIndexTest, WhatIsDamagedIsRefused) {
  const auto refusal = [](const std::function<void(v1::CheckpointIndex&)>& damage) {
    v1::CheckpointIndex index = Index();
    damage(index);
    const absl::Status status = ParseCheckpointIndex(CheckpointIndexJson(index), "i.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& index) { index.set_version(2); }),
              HasSubstr("i.json: version: is 2; this build reads 1"));
  EXPECT_THAT(refusal([](auto& index) { index.set_step(-1); }), HasSubstr("step"));
  EXPECT_THAT(refusal([](auto& index) { index.set_shard_count(3); }),
              HasSubstr("files: are 2 for 3 shards"));
  EXPECT_THAT(refusal([](auto& index) { index.mutable_files(0)->set_name("../x"); }),
              HasSubstr("files: are not plain names"));
  EXPECT_THAT(refusal([](auto& index) { index.mutable_units(0)->set_dtype(v1::INT8); }),
              HasSubstr("unit \"u\" has no dtype of a parameter"));
  EXPECT_THAT(refusal([](auto& index) { index.mutable_units(0)->set_shard_numel(7); }),
              HasSubstr("does not hold its parameter u.b"));
  EXPECT_THAT(
      refusal([](auto& index) { index.mutable_units(0)->mutable_parameters(1)->set_offset(5); }),
      HasSubstr("does not hold its parameter u.b"));
  EXPECT_THAT(refusal([](auto& index) {
                index.mutable_units(0)->mutable_parameters(0)->set_shape(0, int64_t{1} << 62);
              }),
              HasSubstr("does not hold its parameter u.a"));
  EXPECT_THAT(
      refusal([](auto& index) { index.mutable_units(0)->mutable_parameters(0)->set_fqn("v.b"); }),
      HasSubstr("has v.b a second time"));
  EXPECT_THAT(std::string(ParseCheckpointIndex("{", "i.json").status().message()),
              HasSubstr("i.json"));
}

}  // namespace
}  // namespace tessera
