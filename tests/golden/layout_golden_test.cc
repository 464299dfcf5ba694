// Layouts against torch's FlatParameter, as every rank saw it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/flat_layout.h"
#include "coordinator/job_planner.h"
#include "tests/golden/golden_cases.h"

namespace tessera {
namespace {

constexpr char kRefused[] = "empty_parameter_refused";

// A unit's flat parameter and what each rank has of it.
struct Flat {
  std::string strategy;
  int64_t shard_count = 0;
  int64_t numel = 0;  // with what is padded before it is cut
  int64_t shard_numel = 0;
  std::vector<int64_t> offsets;
  std::vector<std::string> ranks;

  std::string Text() const {
    return absl::StrCat("strategy ", strategy, "\nshards ", shard_count, " of ", shard_numel,
                        "\nnumel ", numel, "\noffsets ", absl::StrJoin(offsets, ","), "\n",
                        absl::StrJoin(ranks, "\n"));
  }
};

// `pad` is what torch counts as a rank's padding: what is added when the flat parameter is cut.
std::string RankText(size_t rank, int64_t pad, const std::vector<std::string>& pieces) {
  return absl::StrCat("rank ", rank, " pad ", pad, ": ", absl::StrJoin(pieces, " "));
}

// Which parameter, where in the shard, how many elements, which (the last one included).
std::string Piece(int64_t parameter, int64_t offset, int64_t numel, int64_t first, int64_t last) {
  return absl::StrCat(parameter, "@", offset, "+", numel, "[", first, ",", last, "]");
}

Flat FlatOf(const JsonObject& outcome) {
  Flat flat;
  flat.strategy = Member(outcome, "strategy").string_value();
  flat.shard_count = Integer(Member(outcome, "shard_count"));
  flat.shard_numel = Integer(Member(outcome, "shard_numel"));
  flat.numel = Integer(Member(outcome, "numel"));
  flat.offsets = Integers(Member(outcome, "offsets"));
  for (const JsonValue& rank : Member(outcome, "ranks").list_value().values()) {
    const auto& values = rank.list_value().values();
    std::vector<std::string> pieces;
    for (int i = 1; i < values.size(); ++i) {
      const std::vector<int64_t> v = Integers(values[i]);
      pieces.push_back(Piece(v[0], v[1], v[2], v[3], v[4]));
    }
    flat.ranks.push_back(RankText(flat.ranks.size(), Integer(values[0]), pieces));
  }
  return flat;
}

std::string Text(const JsonObject& outcome) {
  if (HasMember(outcome, "error")) return Member(outcome, "error").string_value();
  return FlatOf(outcome).Text();
}

// With offsets, shards and strategy set: the rest.
void Cut(const std::vector<int64_t>& numels, bool aligned, int world_size, Flat* flat) {
  int64_t end = 0;
  for (size_t i = 0; i < numels.size(); ++i) end = std::max(end, flat->offsets[i] + numels[i]);
  // FSDP pads aligned parameters to a multiple of the shards, others only when it cuts.
  flat->numel = aligned ? flat->shard_numel * flat->shard_count : end;
  for (int rank = 0; rank < world_size; ++rank) {
    // Ranks of a shard group are consecutive.
    const int64_t begin = rank % flat->shard_count * flat->shard_numel;
    std::vector<std::string> pieces;
    for (const ShardRecord& record :
         ShardRecords(flat->offsets, numels, begin, begin + flat->shard_numel)) {
      pieces.push_back(Piece(record.parameter, record.offset_in_shard, record.end - record.begin,
                             record.begin, record.end - 1));
    }
    const int64_t held = std::clamp<int64_t>(end - begin, 0, flat->shard_numel);
    flat->ranks.push_back(RankText(rank, aligned ? 0 : flat->shard_numel - held, pieces));
  }
}

Flat FlatOf(const JobPlan& planned, bool aligned, int world_size) {
  const v1::UnitLayout& unit = planned.layout.units(0);
  std::vector<int64_t> numels;
  Flat flat;
  flat.strategy = v1::ShardingStrategy_Name(planned.layout.sharding_strategy());
  flat.shard_count = planned.layout.shard_count();
  flat.shard_numel = unit.shard_numel();
  EXPECT_EQ(unit.padded_numel(), flat.shard_numel * flat.shard_count);
  for (int i = 0; i < unit.parameters_size(); ++i) {
    flat.offsets.push_back(unit.parameters(i).offset());
    numels.push_back(planned.plan.units(0).parameters(i).numel());
  }
  Cut(numels, aligned, world_size, &flat);
  return flat;
}

// Of a model with empty parameters, which no job may have: the layout that its parameters would
// have.
Flat FlatOfParameters(const GoldenCase& golden, const v1::JobSpec& resolved, int world_size) {
  std::vector<int64_t> numels;
  for (const v1::Module& child : resolved.model().spec().root().children()) {
    int64_t numel = 1;
    for (const int64_t extent : child.parameters(0).shape()) numel *= extent;
    numels.push_back(numel);
  }
  FlatLayoutOptions options;
  const std::string& stated = resolved.mixed_precision().param_dtype();
  options.param_dtype = *ParseDType(
      stated.empty() ? resolved.model().spec().root().children(0).parameters(0).dtype() : stated);
  options.param_align_bytes = resolved.wrap().param_align_bytes();
  options.shard_align_bytes = 0;
  options.shard_count = world_size;
  const auto made = MakeFlatLayout(numels, options);
  EXPECT_TRUE(made.ok()) << golden.Name() << made.status();
  Flat flat;
  flat.strategy = "FULL_SHARD";
  flat.shard_count = world_size;
  if (!made.ok()) return flat;
  flat.shard_numel = made->shard_numel;
  flat.offsets = made->offsets;
  Cut(numels, options.param_align_bytes > 0, world_size, &flat);
  return flat;
}

std::string Actual(const GoldenCase& golden) {
  const int world_size = static_cast<int>(Integer(Member(golden.line, "world_size")));
  const auto resolved = ResolvedJob(golden, world_size);
  if (!resolved.ok()) return resolved.status().ToString();
  const auto planned = PlanJob(*resolved, world_size);
  if (golden.Decided(kRefused)) {
    EXPECT_EQ(planned.status().code(), absl::StatusCode::kInvalidArgument) << golden.Name();
    EXPECT_TRUE(absl::StrContains(planned.status().message(), "every extent must be at least 1"))
        << golden.Name() << planned.status();
    return FlatOfParameters(golden, *resolved, world_size).Text();
  }
  if (!planned.ok()) return planned.status().ToString();
  if (golden.Decided("world_size_1")) {
    EXPECT_TRUE(std::any_of(
        planned->layout.notes().begin(), planned->layout.notes().end(),
        [](const std::string& note) { return absl::StrContains(note, "every shard is a whole"); }))
        << golden.Name() << ": that nothing is sharded is in no note";
  }
  return FlatOf(*planned, resolved->wrap().param_align_bytes() > 0, world_size).Text();
}

// The shard metadata of single intervals: of ours, in the golden's form.
void CompareIntervals(const GoldenCase& golden, GoldenCounts* counts) {
  const std::vector<int64_t> offsets = Integers(Member(golden.line, "offsets"));
  const std::vector<int64_t> numels = Integers(Member(golden.line, "numels"));
  std::string actual, expected;
  for (const JsonValue& interval : Member(golden.line, "intervals").list_value().values()) {
    const auto& values = interval.list_value().values();
    const int64_t first = Integer(values[0]), last = Integer(values[1]);
    const std::string name = absl::StrCat("[", first, ",", last, "]");
    absl::StrAppend(&expected, name);
    for (int i = 2; i < values.size(); ++i)
      absl::StrAppend(&expected, " ", absl::StrJoin(Integers(values[i]), ","));
    absl::StrAppend(&actual, name);
    for (const ShardRecord& record : ShardRecords(offsets, numels, first, last + 1)) {
      absl::StrAppend(&actual, " ", record.parameter, ",", record.begin, ",", record.end - 1);
    }
    expected.push_back('\n');
    actual.push_back('\n');
  }
  counts->Compare(golden, actual, expected, expected);
}

TEST(LayoutGoldenTest, ParametersLieAndAreCutAsInTorch) {
  GoldenCounts counts;
  for (const GoldenCase& golden : ReadGoldens("layout.jsonl")) {
    if (HasMember(golden.line, "intervals")) {
      CompareIntervals(golden, &counts);
    } else {
      const std::string theirs = Text(golden.theirs());
      counts.Compare(golden, Actual(golden), Text(golden.ours()), theirs);
    }
  }
  counts.Print("layout.jsonl");
}

}  // namespace
}  // namespace tessera
