// Dtypes against live FSDP units of torch.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/mixed_precision.h"
#include "coordinator/job_planner.h"
#include "tests/golden/golden_cases.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

constexpr int kWorldSize = 4;

std::string String(const JsonObject& object, const std::string& name) {
  return Member(object, name).string_value();
}

const v1::Unit* UnitOf(const v1::Plan& plan, const std::string& fqn) {
  for (const v1::Unit& unit : plan.units()) {
    if (unit.fqn() == fqn) return &unit;
  }
  return nullptr;
}

// As the names of the enum, or of torch.
std::string TableText(absl::string_view compute, absl::string_view reduce, bool low_precision,
                      absl::string_view gradient, absl::string_view unsynced) {
  return absl::StrCat("compute ", compute, "\nreduce ", reduce, "\nlow-precision shard ",
                      low_precision, "\ngradient ", gradient, "\nunsynced gradient ", unsynced);
}

std::string Table(const JsonObject& outcome) {
  return TableText(String(outcome, "compute"), String(outcome, "reduce"),
                   Member(outcome, "low_precision_shard").bool_value(), String(outcome, "gradient"),
                   String(outcome, "unsynced_gradient"));
}

std::string Table(const v1::Unit& unit) {
  return TableText(v1::DType_Name(unit.param_dtype()), v1::DType_Name(unit.reduce_dtype()),
                   unit.param_dtype() != unit.original_dtype(),
                   v1::DType_Name(unit.gradient_dtype()),
                   v1::DType_Name(unit.unsynced_gradient_dtype()));
}

std::string Buffers(const JsonObject& outcome) {
  std::string text;
  // A Struct's fields have no order.
  const auto& fields = Member(outcome, "buffers").struct_value().fields();
  const std::map<std::string, JsonValue> sorted(fields.begin(), fields.end());
  for (const auto& [fqn, dtype] : sorted) {
    absl::StrAppend(&text, fqn, " ", dtype.string_value(), "\n");
  }
  return text;
}

std::string Buffers(const v1::Plan& plan) {
  std::map<std::string, std::string> sorted;
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::UnitBuffer& buffer : unit.buffers())
      sorted[buffer.fqn()] = std::string(DTypeName(buffer.buffer_dtype()));
  }
  std::string text;
  for (const auto& [fqn, dtype] : sorted) absl::StrAppend(&text, fqn, " ", dtype, "\n");
  return text;
}

// The dtypes in which the root and the unit below it saw a floating-point and an integer input.
std::string Inputs(const JsonObject& outcome) {
  return absl::StrCat("root ", absl::StrJoin(Strings(Member(outcome, "")), " "), "\ninner ",
                      absl::StrJoin(Strings(Member(outcome, "inner")), " "));
}

std::string Inputs(const v1::Plan& plan, const std::string& fed) {
  const auto seen = [&](const std::string& fqn) {
    const v1::Unit* unit = UnitOf(plan, fqn);
    if (unit == nullptr) return std::string("no unit");
    return absl::StrCat(
        unit->has_input_dtype() ? DTypeName(unit->input_dtype()) : absl::string_view(fed),
        " int64");
  };
  return absl::StrCat("root ", seen(""), "\ninner ", seen("inner"));
}

// What ranks' gradients are divided by before and after they are summed.
std::string Factors(const JsonObject& outcome) {
  std::string text;
  for (const JsonValue& row : Member(outcome, "factors").list_value().values()) {
    const auto& values = row.list_value().values();
    absl::StrAppend(&text, values[0].number_value(), ": ", values[1].number_value(), " ",
                    values[2].number_value(), "\n");
  }
  return text;
}

std::string Factors(DType reduce, const JsonObject& outcome) {
  std::string text;
  for (const JsonValue& row : Member(outcome, "factors").list_value().values()) {
    const int64_t ranks = Integer(row.list_value().values(0));
    const DivideFactors factors = DivideFactorsFor(reduce, ranks);
    absl::StrAppend(&text, ranks, ": ", factors.before, " ", factors.after, "\n");
  }
  return text;
}

// The plan of the case's model with every parameter in `dtype`.
absl::StatusOr<JobPlan> PlanIn(v1::JobSpec resolved, const std::string& dtype) {
  for (v1::Parameter& parameter :
       *resolved.mutable_model()->mutable_spec()->mutable_root()->mutable_parameters()) {
    parameter.set_dtype(dtype);
  }
  return PlanJob(resolved, kWorldSize);
}

std::string Changed(const v1::Unit& unit) {
  return absl::StrCat("original ", v1::DType_Name(unit.original_dtype()), "\ncompute ",
                      v1::DType_Name(unit.param_dtype()), "\nreduce ",
                      v1::DType_Name(unit.reduce_dtype()));
}

std::string Changed(const JsonObject& outcome) {
  return absl::StrCat("original ", String(outcome, "original"), "\ncompute ",
                      String(outcome, "compute"), "\nreduce ", String(outcome, "reduce"));
}

// A resolved unit whose original dtype changes comes to what a plan of the new dtype says.
void CheckChange(const GoldenCase& golden, const v1::JobSpec& resolved, const v1::Unit& planned) {
  const auto before = ResolveDTypes(v1::FLOAT32, resolved.mixed_precision());
  ASSERT_TRUE(before.ok()) << golden.Name() << before.status();
  const auto after =
      ChangeOriginalDType(*before, planned.original_dtype(), resolved.mixed_precision());
  ASSERT_TRUE(after.ok()) << golden.Name() << after.status();
  EXPECT_EQ(after->original, planned.original_dtype()) << golden.Name();
  EXPECT_EQ(after->param, planned.param_dtype()) << golden.Name();
  EXPECT_EQ(after->reduce, planned.reduce_dtype()) << golden.Name();
}

// What the case says, ours and theirs, and what is planned.
struct Texts {
  std::string actual, expected, theirs;
};

Texts TextsOf(const GoldenCase& golden, const v1::JobSpec& resolved, const v1::Plan& plan) {
  const JsonObject& theirs = golden.theirs();
  if (golden.kind == "buffers") return {Buffers(plan), Buffers(theirs), Buffers(theirs)};
  if (golden.kind == "inputs" || golden.kind == "norm inputs") {
    return {Inputs(plan, String(golden.line, "fed")), Inputs(golden.ours()), Inputs(theirs)};
  }
  if (golden.kind == "changed") {
    const auto changed = PlanIn(resolved, String(golden.line, "new_dtype"));
    if (!changed.ok()) return {changed.status().ToString(), Changed(theirs), Changed(theirs)};
    CheckChange(golden, resolved, changed->plan.units(0));
    return {Changed(changed->plan.units(0)), Changed(theirs), Changed(theirs)};
  }
  return {Table(plan.units(0)), Table(golden.ours()), Table(theirs)};
}

TEST(DtypeGoldenTest, UnitsComputeReduceAndKeepGradientsAsTorch) {
  GoldenCounts counts;
  for (const GoldenCase& golden : ReadGoldens("dtypes.jsonl")) {
    if (golden.kind == "divide") {
      const DType reduce = *ParseDType(String(golden.line, "reduce"));
      counts.Compare(golden, Factors(reduce, golden.theirs()), Factors(golden.ours()),
                     Factors(golden.theirs()));
      continue;
    }
    const auto resolved = ResolvedJob(golden, kWorldSize);
    if (!resolved.ok()) {
      counts.Compare(golden, resolved.status().ToString(), "", "");
      continue;
    }
    const auto planned = PlanJob(*resolved, kWorldSize);
    if (!planned.ok()) {
      counts.Compare(golden, planned.status().ToString(), "", "");
      continue;
    }
    const Texts texts = TextsOf(golden, *resolved, planned->plan);
    counts.Compare(golden, texts.actual, texts.expected, texts.theirs);
  }
  counts.Print("dtypes.jsonl");
}

}  // namespace
}  // namespace tessera
