// Vectors of FSDP's own tests and of its chunking rule, beside those of the two alignments.
#include "common/flat_layout.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace tessera {
namespace {

FlatLayout LayOut(const std::vector<int64_t>& numels, FlatLayoutOptions options) {
  const auto layout = MakeFlatLayout(numels, options);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : FlatLayout{};
}

using Records =
    std::vector<std::tuple<int, int64_t, int64_t>>;  // parameter, first, last (inclusive)

Records RecordsOf(const FlatLayout& layout, const std::vector<int64_t>& numels, int64_t begin,
                  int64_t end) {
  Records records;
  for (const ShardRecord& r : ShardRecords(layout.offsets, numels, begin, end)) {
    EXPECT_EQ(begin + r.offset_in_shard, layout.offsets[r.parameter] + r.begin);
    records.emplace_back(r.parameter, r.begin, r.end - 1);
  }
  return records;
}

TEST(FlatLayoutTest, CutsLikeChunk) {
  // numel, shards, elements of a shard.
  const std::vector<std::tuple<int64_t, int64_t, int64_t>> vectors = {
      {1, 4, 1}, {5, 4, 2}, {6, 4, 2}, {9, 4, 3}, {10, 4, 3}, {17, 8, 3}, {30, 4, 8}, {110, 8, 14}};
  for (const auto& [numel, shards, shard_numel] : vectors) {
    const FlatLayout layout =
        LayOut({numel}, {.param_align_bytes = 0, .shard_align_bytes = 0, .shard_count = shards});
    EXPECT_EQ(layout.shard_numel, shard_numel) << numel << " over " << shards;
    EXPECT_EQ(layout.padded_numel, shard_numel * shards);
    EXPECT_EQ(layout.end, numel);
  }
}

// FSDP's vectors: how much of each rank's shard is the parameter, the rest being padding.
TEST(FlatLayoutTest, ChunkLengthsOfEveryRank) {
  const std::vector<std::tuple<int64_t, std::vector<int64_t>>> vectors = {
      {1, {1, 0, 0, 0}},  {5, {2, 2, 1, 0}},
      {6, {2, 2, 2, 0}},  {9, {3, 3, 3, 0}},
      {10, {3, 3, 3, 1}}, {17, {3, 3, 3, 3, 3, 2, 0, 0}},
      {30, {8, 8, 8, 6}}, {110, {14, 14, 14, 14, 14, 14, 14, 12}},
  };
  for (const auto& [numel, lengths] : vectors) {
    const int ranks = static_cast<int>(lengths.size());
    const FlatLayout layout =
        LayOut({numel}, {.param_align_bytes = 0, .shard_align_bytes = 0, .shard_count = ranks});
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = rank * layout.shard_numel;
      int64_t length = 0;
      for (const ShardRecord& record : ShardRecords(layout.offsets, std::vector<int64_t>{numel},
                                                    begin, begin + layout.shard_numel)) {
        length += record.end - record.begin;
      }
      EXPECT_EQ(length, lengths[rank]) << numel << " on rank " << rank;
    }
  }
}

TEST(FlatLayoutTest, EmptyParametersBesideOthers) {
  const std::vector<int64_t> numels = {3, 0, 5, 0};
  const FlatLayout layout = LayOut(numels, {.shard_align_bytes = 0, .shard_count = 2});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 4, 4, 12}));
  EXPECT_EQ(layout.end, 12);  // what is empty is aligned too
  EXPECT_EQ(layout.padded_numel, 12);
  EXPECT_EQ(RecordsOf(layout, numels, 0, 6), (Records{{0, 0, 2}, {2, 0, 1}}));
  EXPECT_EQ(RecordsOf(layout, numels, 6, 12), (Records{{2, 2, 4}}));
}

TEST(FlatLayoutTest, RecordsOfThreeLinears) {
  const std::vector<int64_t> numels = {100, 100, 100};
  const FlatLayout layout = LayOut(numels, {.param_align_bytes = 0, .shard_align_bytes = 0});
  // First and last element of the interval, inclusive; parameter, first and last within it.
  const std::vector<std::tuple<int64_t, int64_t, Records>> vectors = {
      {0, 0, {{0, 0, 0}}},
      {0, 50, {{0, 0, 50}}},
      {0, 99, {{0, 0, 99}}},
      {50, 149, {{0, 50, 99}, {1, 0, 49}}},
      {50, 199, {{0, 50, 99}, {1, 0, 99}}},
      {99, 199, {{0, 99, 99}, {1, 0, 99}}},
      {100, 199, {{1, 0, 99}}},
      {100, 299, {{1, 0, 99}, {2, 0, 99}}},
      {100, 1000, {{1, 0, 99}, {2, 0, 99}}},
      {299, 299, {{2, 99, 99}}},
  };
  for (const auto& [first, last, records] : vectors) {
    EXPECT_EQ(RecordsOf(layout, numels, first, last + 1), records) << first << ".." << last;
  }
}

TEST(FlatLayoutTest, AlignsParametersOfFloat32) {
  const std::vector<int64_t> numels = {21, 35, 25};
  const FlatLayout layout = LayOut(numels, {.shard_align_bytes = 0, .shard_count = 2});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 24, 60}));
  EXPECT_EQ(layout.end, 85);
  EXPECT_EQ(layout.padded_numel, 86);
  EXPECT_EQ(layout.shard_numel, 43);
  EXPECT_EQ(RecordsOf(layout, numels, 0, 43), (Records{{0, 0, 20}, {1, 0, 18}}));
  EXPECT_EQ(RecordsOf(layout, numels, 43, 86), (Records{{1, 19, 34}, {2, 0, 24}}));
}

TEST(FlatLayoutTest, AlignsParametersOfFloat16) {
  const std::vector<int64_t> numels = {10, 25, 15};
  const FlatLayout layout =
      LayOut(numels, {.param_dtype = v1::FLOAT16, .shard_align_bytes = 0, .shard_count = 2});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 16, 48}));
  EXPECT_EQ(layout.end, 63);
  EXPECT_EQ(layout.padded_numel, 64);
  EXPECT_EQ(RecordsOf(layout, numels, 0, 32), (Records{{0, 0, 9}, {1, 0, 15}}));
  EXPECT_EQ(RecordsOf(layout, numels, 32, 64), (Records{{1, 16, 24}, {2, 0, 14}}));
}

TEST(FlatLayoutTest, PadsLastShardWhenNumelNotDivisible) {
  const FlatLayout layout = LayOut({25, 5, 25, 5}, {.shard_align_bytes = 0, .shard_count = 4});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 28, 36, 64}));
  EXPECT_EQ(layout.end, 69);
  EXPECT_EQ(layout.padded_numel, 72);
  EXPECT_EQ(layout.shard_numel, 18);
}

TEST(FlatLayoutTest, AlignsShardsInBytesOfParamDType) {
  const FlatLayout bf16 = LayOut({100, 24}, {.param_dtype = v1::BFLOAT16, .shard_count = 2});
  EXPECT_EQ(bf16.offsets, (std::vector<int64_t>{0, 104}));
  EXPECT_EQ(bf16.padded_numel, 128);
  EXPECT_EQ(bf16.shard_numel, 64);
  // 124 elements over 2 are 62: 128 bytes are 32 float32 or 16 float64.
  const FlatLayout fp32 = LayOut({100, 24}, {.shard_count = 2});
  EXPECT_EQ(fp32.shard_numel, 64);
  const FlatLayout fp64 = LayOut({100, 24}, {.param_dtype = v1::FLOAT64, .shard_count = 2});
  EXPECT_EQ(fp64.shard_numel, 64);
  const FlatLayout fp64_3 = LayOut({100, 24}, {.param_dtype = v1::FLOAT64, .shard_count = 3});
  EXPECT_EQ(fp64_3.shard_numel, 48);
}

TEST(FlatLayoutTest, AlignmentThatElementsDoNotDivide) {
  // Multiples of 6 bytes at which a float32 can start: every 12 bytes, 3 elements.
  const FlatLayout layout = LayOut({1, 1}, {.param_align_bytes = 6, .shard_align_bytes = 0});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 3}));
}

TEST(FlatLayoutTest, NothingTakesNoPlace) {
  const FlatLayout none = LayOut({}, {.shard_count = 4});
  EXPECT_EQ(none.padded_numel, 0);
  EXPECT_EQ(none.shard_numel, 0);
  const FlatLayout empty = LayOut({0, 0}, {.shard_count = 4});
  EXPECT_EQ(empty.padded_numel, 0);
  EXPECT_TRUE(ShardRecords(empty.offsets, std::vector<int64_t>{0, 0}, 0, 100).empty());
}

// As FSDP, which aligns an empty parameter like any other: 5 and 0 elements of float32 over 3.
TEST(FlatLayoutTest, AnEmptyParameterAtTheEndIsAligned) {
  const FlatLayout layout = LayOut({5, 0}, {.shard_align_bytes = 0, .shard_count = 3});
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(layout.end, 8);
  EXPECT_EQ(layout.padded_numel, 9);
}

TEST(FlatLayoutTest, RefusesOptionsOutOfRange) {
  for (const FlatLayoutOptions& options :
       {FlatLayoutOptions{.param_align_bytes = -1},
        FlatLayoutOptions{.shard_align_bytes = kMaxAlignBytes + 1},
        FlatLayoutOptions{.shard_count = 0},
        FlatLayoutOptions{.param_dtype = v1::DTYPE_UNSPECIFIED}}) {
    EXPECT_EQ(MakeFlatLayout({}, options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MakeFlatLayout({-1}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tessera
