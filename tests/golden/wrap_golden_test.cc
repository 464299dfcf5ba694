// Plans against the units that torch's and fairscale's own code made of the same trees.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "coordinator/job_planner.h"
#include "tests/golden/golden_cases.h"

namespace tessera {
namespace {

std::string Sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, " ");
}

std::vector<std::string> Of(const google::protobuf::RepeatedPtrField<std::string>& names) {
  return {names.begin(), names.end()};
}

// An outcome in a golden file: units in order, each with its parameters in order, then what is
// left. `like` has the members that count.
std::string Text(const JsonObject& outcome, const JsonObject& like) {
  if (HasMember(outcome, "error")) return Member(outcome, "error").string_value();
  if (HasMember(outcome, "refused")) return Member(outcome, "refused").string_value();
  std::string text;
  const auto& units = Member(outcome, "units").list_value();
  const auto& dtypes = Member(outcome, "dtypes").list_value();
  const auto& strategies = Member(outcome, "strategies").list_value();
  for (int i = 0; i < units.values_size(); ++i) {
    const auto& unit = units.values(i).list_value();
    absl::StrAppend(&text, "unit \"", unit.values(0).string_value(),
                    "\": ", absl::StrJoin(Strings(unit.values(1)), " "));
    if (HasMember(like, "dtypes") && !unit.values(1).list_value().values().empty())
      absl::StrAppend(&text, " in ", absl::StrJoin(Strings(dtypes.values(i)), ","));
    if (HasMember(like, "strategies"))
      absl::StrAppend(&text, " ", strategies.values(i).string_value());
    text.push_back('\n');
  }
  std::vector<std::string> ties;
  for (const auto& [fqn, tied] : Member(outcome, "ties").struct_value().fields()) {
    ties.push_back(absl::StrCat("ties ", fqn, ": ", Sorted(Strings(tied))));
  }
  std::sort(ties.begin(), ties.end());
  absl::StrAppend(&text, absl::StrJoin(ties, "\n"), "\norphans ",
                  Sorted(Strings(Member(outcome, "orphans"))), "\nignored ",
                  Sorted(Strings(Member(outcome, "ignored"))));
  return text;
}

std::string StrategyOf(const v1::Unit& unit, const v1::JobSpec& resolved) {
  return absl::AsciiStrToUpper(unit.overrides().has_strategy() ? unit.overrides().strategy()
                                                               : resolved.mesh().strategy());
}

std::string Text(const v1::Plan& plan, const v1::JobSpec& resolved, const JsonObject& like) {
  std::string text;
  std::vector<std::string> ties;
  for (const v1::Unit& unit : plan.units()) {
    std::vector<std::string> fqns;
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      fqns.push_back(parameter.fqn());
      if (parameter.tied_fqns().empty()) continue;
      ties.push_back(
          absl::StrCat("ties ", parameter.fqn(), ": ", Sorted(Of(parameter.tied_fqns()))));
    }
    absl::StrAppend(&text, "unit \"", unit.fqn(), "\": ", absl::StrJoin(fqns, " "));
    if (HasMember(like, "dtypes") && !fqns.empty()) {
      absl::StrAppend(&text, " in ", v1::DType_Name(unit.param_dtype()), ",",
                      v1::DType_Name(unit.reduce_dtype()));
    }
    if (HasMember(like, "strategies")) absl::StrAppend(&text, " ", StrategyOf(unit, resolved));
    text.push_back('\n');
  }
  std::sort(ties.begin(), ties.end());
  absl::StrAppend(&text, absl::StrJoin(ties, "\n"), "\norphans ", Sorted(Of(plan.orphans())),
                  "\nignored ", Sorted(Of(plan.ignored())));
  return text;
}

bool AnyNote(const v1::Plan& plan, const std::vector<std::string>& parts) {
  return std::any_of(plan.notes().begin(), plan.notes().end(), [&](const std::string& note) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return absl::StrContains(note, part); });
  });
}

// What the case's job comes to, in the form of `ours`.
std::string Actual(const GoldenCase& golden, const JsonObject& ours) {
  const auto resolved = ResolvedJob(golden, /*world_size=*/2);
  const auto planned = resolved.ok() ? PlanJob(*resolved, 2) : resolved.status();
  if (!planned.ok()) {
    EXPECT_EQ(planned.status().code(), absl::StatusCode::kInvalidArgument) << golden.Name();
    // Of a message the golden has a part.
    const std::string& part = Member(ours, "refused").string_value();
    const bool says = !part.empty() && absl::StrContains(planned.status().message(), part);
    return says ? part : std::string(planned.status().message());
  }
  for (const std::string& fqn : Strings(Member(golden.line, "mixed_frozen"))) {
    EXPECT_TRUE(AnyNote(planned->plan, {fqn, "256", "4096"})) << golden.Name() << fqn;
  }
  if (Member(golden.line, "negative_remainder").bool_value()) {
    EXPECT_TRUE(AnyNote(planned->plan, {"is no unit", "the units below it report"}))
        << golden.Name() << absl::StrJoin(planned->plan.notes(), "\n");
  }
  return Text(planned->plan, *resolved, ours);
}

TEST(WrapGoldenTest, UnitsAreThoseOfTorchAndFairScale) {
  GoldenCounts counts;
  for (const GoldenCase& golden : ReadGoldens("wrap.jsonl")) {
    const JsonObject& ours = golden.ours();
    const std::string expected = Text(ours, ours);
    // Both refuse, each in its own words.
    const bool both = HasMember(ours, "refused") && HasMember(golden.theirs(), "error");
    counts.Compare(golden, Actual(golden, ours), expected,
                   both ? expected : Text(golden.theirs(), ours));
  }
  counts.Print("wrap.jsonl");
}

}  // namespace
}  // namespace tessera
