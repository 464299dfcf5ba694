// Renames tensors by rules of the job file (checkpoint.import_names, checkpoint.export_names).
//
//   TESSERA_ASSIGN_OR_RETURN(const NameRules rules,
//                            NameRules::Create("checkpoint.import_names", spec.import_names()));
//   rules.Apply("transformer.wte.weight");  // "wte.weight"
//
// Expressions are RE2's: matching takes time proportional to the name. Thread-safety: immutable.
#ifndef TESSERA_COMMON_NAME_RULES_H_
#define TESSERA_COMMON_NAME_RULES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"

namespace re2 {
class RE2;
}  // namespace re2

namespace tessera {

class NameRules {
 public:
  // INVALID_ARGUMENT (`field`[i].from or .to): no expression; a `to` that names more groups than
  // there are.
  static absl::StatusOr<NameRules> Create(
      absl::string_view field, const google::protobuf::RepeatedPtrField<v1::NameRule>& rules);

  NameRules();
  NameRules(NameRules&&) noexcept;
  NameRules& operator=(NameRules&&) noexcept;
  ~NameRules();

  // What the first rule that matches all of `name` makes of it; without one the name itself. "":
  // the tensor is left out.
  std::string Apply(const std::string& name) const;

 private:
  struct Rule {
    std::unique_ptr<re2::RE2> from;
    std::string to;
  };
  std::vector<Rule> rules_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_NAME_RULES_H_
