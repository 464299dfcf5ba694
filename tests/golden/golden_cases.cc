#include "tests/golden/golden_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/job_spec.h"
#include "common/json_message.h"
#include "common/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace tessera {
namespace {

// More failures than these say nothing new.
constexpr int kMaxShown = 20;

bool Parse(const std::string& text, JsonObject* object) {
  const auto status = google::protobuf::util::JsonStringToMessage(text, object);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return status.ok();
}

std::string Json(const JsonValue& value) {
  std::string text;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(value, &text).ok());
  return text;
}

// The lines of `actual` and `expected` that the other one lacks.
std::string Difference(absl::string_view actual, absl::string_view expected) {
  const std::vector<std::string> ours = absl::StrSplit(actual, '\n');
  const std::vector<std::string> golden = absl::StrSplit(expected, '\n');
  std::string text;
  const auto add = [&text](absl::string_view mark, const std::vector<std::string>& lines,
                           const std::vector<std::string>& other) {
    for (const std::string& line : lines) {
      if (std::find(other.begin(), other.end(), line) == other.end())
        absl::StrAppend(&text, "  ", mark, " ", line, "\n");
    }
  };
  add("golden", golden, ours);
  add("actual", ours, golden);
  return text.empty() ? absl::StrCat("  another order; actual:\n", actual, "\n") : text;
}

}  // namespace

const JsonValue& Member(const JsonObject& object, const std::string& name) {
  static const JsonValue* const kNone = new JsonValue();
  const auto found = object.fields().find(name);
  return found == object.fields().end() ? *kNone : found->second;
}

bool HasMember(const JsonObject& object, const std::string& name) {
  return object.fields().count(name) > 0;
}

std::vector<std::string> Strings(const JsonValue& list) {
  std::vector<std::string> strings;
  for (const JsonValue& value : list.list_value().values()) strings.push_back(value.string_value());
  return strings;
}

std::vector<int64_t> Integers(const JsonValue& list) {
  std::vector<int64_t> integers;
  for (const JsonValue& value : list.list_value().values()) integers.push_back(Integer(value));
  return integers;
}

const JsonObject& GoldenCase::ours() const {
  return HasMember(line, "ours") ? Member(line, "ours").struct_value() : theirs();
}

bool GoldenCase::Decided(absl::string_view name) const {
  return std::find(decided.begin(), decided.end(), name) != decided.end();
}

std::string GoldenCase::Name() const { return absl::StrCat("case ", number, " (", kind, ")"); }

std::vector<GoldenCase> ReadGoldens(const std::string& file) {
  std::ifstream in("tests/golden/" + file);
  std::vector<GoldenCase> cases;
  std::string text;
  JsonObject header;
  if (!std::getline(in, text) || !Parse(text, &header)) {
    ADD_FAILURE() << file << " has no header";
    return {};
  }
  while (std::getline(in, text)) {
    GoldenCase golden;
    if (!Parse(text, &golden.line)) return {};
    golden.number = static_cast<int>(Integer(Member(golden.line, "case")));
    golden.kind = Member(golden.line, "kind").string_value();
    golden.decided = Strings(Member(golden.line, "decided"));
    cases.push_back(std::move(golden));
  }
  if (static_cast<int64_t>(cases.size()) != Integer(Member(header, "cases"))) {
    ADD_FAILURE() << file << " is cut off after " << cases.size() << " cases";
    return {};
  }
  return cases;
}

absl::StatusOr<v1::JobSpec> ResolvedJob(const GoldenCase& golden, int world_size) {
  v1::JobSpec job;
  TESSERA_RETURN_IF_ERROR(
      ParseJson(Json(Member(golden.line, "job")), golden.Name(), "a JobSpec", &job));
  TESSERA_RETURN_IF_ERROR(ParseJson(Json(Member(golden.line, "model")), golden.Name(),
                                    "a ModelSpec", job.mutable_model()->mutable_spec()));
  job.set_name("golden");
  job.set_global_batch(world_size);
  job.mutable_mesh()->set_min_workers(world_size);
  job.mutable_mesh()->set_max_workers(world_size);
  return ResolveJobSpec(std::move(job));
}

void GoldenCounts::Compare(const GoldenCase& golden, absl::string_view actual,
                           absl::string_view expected, absl::string_view theirs) {
  ++cases_;
  // A decision that changes nothing would be none, unless it is to refuse.
  const bool decided = !golden.decided.empty();
  const bool refused = golden.decided.size() == 1 && absl::EndsWith(golden.decided[0], "_refused");
  if (actual != expected || (!refused && decided == (expected == theirs))) {
    if (++failed_ > kMaxShown) return;
    ADD_FAILURE() << golden.Name()
                  << (actual != expected ? " differs:\n" : " is decided, but is as theirs:\n")
                  << Difference(actual, expected) << "  job: " << Json(Member(golden.line, "job"));
    return;
  }
  if (!decided) ++agree_;
  for (const std::string& name : golden.decided) ++decided_[name];
}

void GoldenCounts::Print(absl::string_view file) const {
  std::vector<std::string> kinds;
  for (const auto& [name, count] : decided_) kinds.push_back(absl::StrCat(name, " ", count));
  std::cout << file << ": " << cases_ << " cases: " << agree_ << " agree, "
            << cases_ - agree_ - failed_ << " differ as decided (" << absl::StrJoin(kinds, ", ")
            << "), " << failed_ << " fail" << std::endl;
}

}  // namespace tessera
