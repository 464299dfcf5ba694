// Layouts against torch's FlatParameter, as every rank saw it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flat_layout.h"
#include "coordinator/job_planner.h"
#include "tests/golden/golden_cases.h"

namespace tessera {
namespace {

struct Flat {
  std::string strategy;
  int64_t shard_count = 0, shard_numel = 0, padded_numel = 0;
  std::vector<int64_t> offsets;
  // For each rank: padding behind its last parameter, then the pieces of parameters.
  std::vector<std::string> ranks;

  std::string Text() const {
    return absl::StrCat("strategy ", strategy, "\nshards ", shard_count, " of ", shard_numel,
                        "\npadded ", padded_numel, "\noffsets ", absl::StrJoin(offsets, ","), "\n",
                        absl::StrJoin(ranks, "\n"));
  }
};

std::string RankText(int rank, int64_t pad, const std::vector<std::string>& pieces) {
  return absl::StrCat("rank ", rank, " pad ", pad, " ", absl::StrJoin(pieces, " "));
}

// Parameter, where in the shard, how many, and which elements (the last one included).
std::string Piece(int64_t parameter, int64_t offset, int64_t numel, int64_t first, int64_t last) {
  return absl::StrCat(parameter, "@", offset, "+", numel, "[", first, ",", last, "]");
}

// What torch calls padding: with aligned parameters all of it is in the parameter that is cut.
bool PadsWhatIsCut(const GoldenCase& golden) {
  const JsonObject& job = Member(golden.line, "job").struct_value();
  return Integer(Member(Member(job, "wrap").struct_value(), "param_align_bytes")) > 0;
}

Flat Theirs(const GoldenCase& golden) {
  const JsonObject& theirs = golden.theirs();
  Flat flat;
  flat.strategy = Member(theirs, "strategy").string_value();
  flat.shard_count = Integer(Member(theirs, "shard_count"));
  flat.shard_numel = Integer(Member(theirs, "shard_numel"));
  flat.padded_numel = flat.shard_count * flat.shard_numel;
  flat.offsets = Integers(Member(theirs, "offsets"));
  for (const JsonValue& rank : Member(theirs, "ranks").list_value().values()) {
    const auto& values = rank.list_value().values();
    std::vector<std::string> pieces;
    for (int i = 1; i < values.size(); ++i) {
      const std::vector<int64_t> v = Integers(values[i]);
      pieces.push_back(Piece(v[0], v[1], v[2], v[3], v[4]));
    }
    flat.ranks.push_back(
        RankText(static_cast<int>(flat.ranks.size()), Integer(values[0]), pieces));
  }
  return flat;
}

Flat Ours(const GoldenCase& golden, const JobPlan& planned, int world_size) {
  const v1::UnitLayout& unit = planned.layout.units(0);
  std::vector<int64_t> numels;
  Flat flat;
  flat.strategy = v1::ShardingStrategy_Name(planned.layout.sharding_strategy());
  flat.shard_count = planned.layout.shard_count();
  flat.shard_numel = unit.shard_numel();
  flat.padded_numel = unit.padded_numel();
  int64_t end = 0;
  for (int i = 0; i < unit.parameters_size(); ++i) {
    flat.offsets.push_back(unit.parameters(i).offset());
    numels.push_back(planned.plan.units(0).parameters(i).numel());
    end = std::max(end, flat.offsets.back() + numels.back());
  }
  for (int rank = 0; rank < world_size; ++rank) {
    // Ranks of a shard group are consecutive.
    const int64_t begin = rank % flat.shard_count * flat.shard_numel;
    const int64_t owned = std::clamp<int64_t>(end - begin, 0, flat.shard_numel);
    std::vector<std::string> pieces;
    for (const ShardRecord& record :
         ShardRecords(flat.offsets, numels, begin, begin + flat.shard_numel)) {
      pieces.push_back(Piece(record.parameter, record.offset_in_shard, record.end - record.begin,
                             record.begin, record.end - 1));
    }
    flat.ranks.push_back(
        RankText(rank, PadsWhatIsCut(golden) ? 0 : flat.shard_numel - owned, pieces));
  }
  return flat;
}

// `theirs` as it was decided to be.
Flat Decided(const GoldenCase& golden, Flat theirs) {
  const JsonObject& job = Member(golden.line, "job").struct_value();
  const JsonObject& outcome = golden.theirs();
  if (golden.Decided("world_size_1")) {
    // The strategy asked for is kept; that nothing is cut is in a note.
    theirs.strategy = absl::AsciiStrToUpper(
        Member(Member(job, "mesh").struct_value(), "strategy").string_value());
  }
  if (golden.Decided("no_shard_padding") || golden.Decided("trailing_empty_parameter")) {
    // Nothing is cut; or the flat parameter ends with its last element.
    theirs.padded_numel = Integer(Member(outcome, "decided_numel"));
    theirs.shard_numel = theirs.padded_numel / theirs.shard_count;
  }
  return theirs;
}

// Pieces without elements are recorded by torch alone.
void DropEmptyPieces(Flat* flat) {
  for (std::string& rank : flat->ranks) {
    for (size_t at; (at = rank.find("+0[0,-1]")) != std::string::npos;) {
      const size_t begin = rank.rfind(' ', at);
      rank.erase(begin, at + 8 - begin);
    }
  }
}
