// Golden files, as C++ tests read them. golden_file.py says what they are, README.md what is in
// them.
//
//   for (const GoldenCase& golden : ReadGoldens("wrap.jsonl")) {
//     const v1::JobSpec resolved = ResolvedJob(golden, /*world_size=*/2);
//     ...
//     counts.Compare(golden, ours, Text(golden, "theirs"));
//   }
//   counts.Print();
#ifndef TESSERA_TESTS_GOLDEN_GOLDEN_CASES_H_
#define TESSERA_TESTS_GOLDEN_GOLDEN_CASES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

using JsonValue = google::protobuf::Value;
using JsonObject = google::protobuf::Struct;

// The member `name`, or null (a JSON null) where there is none.
const JsonValue& Member(const JsonObject& object, const std::string& name);
bool HasMember(const JsonObject& object, const std::string& name);
std::vector<std::string> Strings(const JsonValue& list);
std::vector<int64_t> Integers(const JsonValue& list);
inline int64_t Integer(const JsonValue& value) {
  return static_cast<int64_t>(value.number_value());
}

struct GoldenCase {
  int number = 0;
  std::string kind;
  std::vector<std::string> decided;  // names of the decisions by which ours is not theirs
  JsonObject line;

  const JsonObject& theirs() const { return Member(line, "theirs").struct_value(); }
  // What is expected: theirs, or where something was decided what that makes of it.
  const JsonObject& ours() const;
  bool Decided(absl::string_view name) const;
  // "case 12 (size)", for messages.
  std::string Name() const;
};

// All cases of a golden file. Fails the test, and gives none, where the file is not whole.
std::vector<GoldenCase> ReadGoldens(const std::string& file);

// The case's job with its model, for `world_size` workers, resolved.
absl::StatusOr<v1::JobSpec> ResolvedJob(const GoldenCase& golden, int world_size);

// Compares, and counts what agreed and what differs by which decision. Texts are lines; a failure
// names the case and shows the lines that differ.
class GoldenCounts {
 public:
  // `expected` is ours: theirs, or what was decided.
  void Compare(const GoldenCase& golden, absl::string_view actual, absl::string_view expected,
               absl::string_view theirs);
  // To stdout, e.g. "763 cases: 660 agree, 103 differ as decided (alias_name 3, ...)".
  void Print(absl::string_view file) const;

 private:
  int cases_ = 0, agree_ = 0, failed_ = 0;
  std::map<std::string, int> decided_;
};

}  // namespace tessera

#endif  // TESSERA_TESTS_GOLDEN_GOLDEN_CASES_H_
