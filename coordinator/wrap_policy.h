// Decides which modules are units, as FSDP and FairScale do: children before parents, each asked
// two questions (coordinator/policy.h). With wrap.any_of a yes of any policy is a yes, to both
// (FSDP's _or_policy): a size policy's gate then holds nothing back.
//
// A unit reports the elements of its whole subtree to the modules around it, another module what
// the units below it report, and what a module holds less those reports is its remainder. A tensor
// tied between two units is reported twice, so a remainder can be too small, or negative; the
// answer is then FairScale's, and a note says so.
//
// Whatever the policy says,
//   - the root is a unit, unless wrap.root_unit is by_policy;
//   - modules that match wrap.wrap_patterns are units;
//   - with mixed precision, modules of mixed_precision.ignored_classes are units in full precision,
//     unless the policy is none. (FSDP or-s this to a size policy and so opens its gate everywhere;
//     here the gate stays as it is.)
// What wrap.ignore names is no unit and counts nowhere. An alias (`same_as`) is never a unit: its
// target is, where that is asked at its first name; under a second name it is not asked again.
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_WRAP_POLICY_H_
#define TESSERA_COORDINATOR_WRAP_POLICY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_spec.h"
#include "coordinator/ignored.h"
#include "coordinator/policy.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// By index in index.modules().
struct WrapChoice {
  std::vector<bool> is_unit;
  std::vector<bool> asked;           // the policy came to it: every module around it let it through
  std::vector<int64_t> numel;        // of it and all below, each storage once
  std::vector<int64_t> reported;     // what it hears from below
  std::vector<bool> full_precision;  // a unit for mixed_precision.ignored_classes
  // Aliases beside their target or beside another of its aliases: their parent hears of it once.
  std::vector<bool> second_name;
  std::vector<int> pattern;  // first of wrap.wrap_patterns that matches; -1: none
  Ignored ignored;
  std::vector<Policy> policies;  // more than one: any may say yes
  std::vector<std::string> notes;
};

// INVALID_ARGUMENT: wrap.policy is unknown; class without classes, or with classes that no module
// has (accelerate #2872: all of them are named, with those that there are); a pattern that matches
// no module; or as FindIgnored.
absl::StatusOr<WrapChoice> ChooseUnits(const ModelIndex& index, const v1::WrapSpec& wrap,
                                       const v1::MixedPrecisionSpec& mixed_precision);

// For each module the nearest that is a unit, itself included; -1: there is none.
std::vector<int> NearestUnits(const ModelIndex& index, const std::vector<bool>& is_unit);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_WRAP_POLICY_H_
