// One wrap policy: FSDP's two questions at a module, to look below it (`recurse` true) and to make
// it a unit (`recurse` false), and why the answer is what it is.
//
//   size       descend: the module and all below it hold at least min_params elements, and its
//              class is not in force_leaf_classes. Wrap: what the units below it leave is at least
//              min_params, and its class is not in exclude_classes. FairScale's rule.
//   class      always descends; wraps the classes in wrap_classes.
//   always     yes to both.      none: no to both.
//   annotated  always descends; wraps modules with wrap true, or with a wrap_config and no wrap.
//
// A class is matched by class_name and by each of base_classes. Thread-safety: immutable.
#ifndef TESSERA_COORDINATOR_POLICY_H_
#define TESSERA_COORDINATOR_POLICY_H_

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_field.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// Names of classes; "" is none.
class ClassSet {
 public:
  ClassSet() = default;
  explicit ClassSet(const google::protobuf::RepeatedPtrField<std::string>& names)
      : names_(names.begin(), names.end()) {
    names_.erase("");
  }
  // `names`, or `defaults` where it is empty.
  template <size_t kCount>
  static ClassSet OrDefault(const google::protobuf::RepeatedPtrField<std::string>& names,
                            const char* const (&defaults)[kCount]) {
    if (!names.empty()) return ClassSet(names);
    return ClassSet({std::begin(defaults), std::end(defaults)});
  }
  // The name by which the module is in the set; null: it is not.
  const std::string* Match(const v1::Module& module) const;
  const absl::flat_hash_set<std::string>& names() const { return names_; }

 private:
  absl::flat_hash_set<std::string> names_;
};

class Policy {
 public:
  enum class Cause {
    kPolicy,      // always and none
    kEnough,      // size: at least min_params
    kTooFew,      // size: fewer
    kForceLeaf,   // size: of a class in force_leaf_classes
    kExcluded,    // size: of a class in exclude_classes
    kRoot,        // size: the root, and skip_root_check
    kRecurses,    // class and annotated descend everywhere
    kListed,      // class: in wrap_classes
    kNotListed,   // class: not
    kAnnotated,   // annotated: wrap or wrap_config
    kForbidden,   // annotated: wrap false
    kUnannotated  // annotated: neither
  };
  struct Answer {
    bool yes = false;
    Cause cause = Cause::kPolicy;
    const std::string* class_name = nullptr;  // that decided
  };

  // The policies of a job: those of any_of, or the one. INVALID_ARGUMENT: unknown, or class without
  // classes.
  static absl::StatusOr<std::vector<Policy>> AllOf(const v1::WrapSpec& wrap);

  // `numel`: of the module and all below it.
  Answer Descend(const v1::Module& module, int64_t numel) const;
  // `remainder`: `numel` less what the units below it report.
  Answer Wrap(const v1::Module& module, int64_t remainder, bool is_root) const;

  // Sentences without a full stop, with the numbers asked.
  std::string WhyDescend(const Answer& answer, int64_t numel) const;
  std::string WhyWrap(const Answer& answer, int64_t remainder) const;

  const std::string& name() const { return name_; }
  // Before its fields: "wrap." or "wrap.any_of[0].".
  const std::string& prefix() const { return prefix_; }
  const ClassSet& wrap_classes() const { return wrap_classes_; }

 private:
  static absl::StatusOr<Policy> Create(std::string prefix, const v1::WrapSpec& wrap);

  std::string name_;
  std::string prefix_;
  enum class Kind { kSize, kClass, kAlways, kNone, kAnnotated } kind_ = Kind::kNone;
  int64_t min_params_ = 0;
  bool skip_root_check_ = false;
  ClassSet wrap_classes_, exclude_classes_, force_leaf_classes_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_POLICY_H_
