#include "coordinator/policy.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"

namespace tessera {
const std::string* ClassSet::Match(const v1::Module& module) const {
  if (names_.empty()) return nullptr;
  if (const auto found = names_.find(module.class_name()); found != names_.end()) return &*found;
  for (const std::string& base : module.base_classes()) {
    if (const auto found = names_.find(base); found != names_.end()) return &*found;
  }
  return nullptr;
}

absl::StatusOr<Policy> Policy::Create(std::string prefix, const v1::WrapSpec& wrap) {
  Policy policy;
  policy.name_ = wrap.policy();
  policy.prefix_ = std::move(prefix);
  if (wrap.policy() == "size") {
    policy.kind_ = Kind::kSize;
    policy.min_params_ = wrap.has_min_params() ? wrap.min_params() : kDefaultMinParams;
    policy.skip_root_check_ = wrap.skip_root_check();
    policy.exclude_classes_ = ClassSet::OrDefault(wrap.exclude_classes(), kDefaultExcludeClasses);
    policy.force_leaf_classes_ =
        ClassSet::OrDefault(wrap.force_leaf_classes(), kDefaultForceLeafClasses);
  } else if (wrap.policy() == "class") {
    policy.kind_ = Kind::kClass;
    policy.wrap_classes_ = ClassSet(wrap.wrap_classes());
    const std::string field = absl::StrCat(policy.prefix_, "wrap_classes");
    if (wrap.wrap_classes().empty()) {
      return InvalidField(field, "is empty; name the classes that become units");
    }
    for (const std::string& name : wrap.wrap_classes()) {
      if (name.empty()) return InvalidField(field, "has \"\" in it; drop it");
    }
  } else if (wrap.policy() == "always") {
    policy.kind_ = Kind::kAlways;
  } else if (wrap.policy() == "annotated") {
    policy.kind_ = Kind::kAnnotated;
  } else if (wrap.policy() != "none") {
    return InvalidField(
        absl::StrCat(policy.prefix_, "policy"),
        absl::StrCat("\"", wrap.policy(),
                     "\" is unknown; use size or class or always or none or annotated"));
  }
  return policy;
}

absl::StatusOr<std::vector<Policy>> Policy::AllOf(const v1::WrapSpec& wrap) {
  std::vector<Policy> policies;
  if (wrap.any_of().empty()) {
    TESSERA_ASSIGN_OR_RETURN(Policy policy, Create("wrap.", wrap));
    policies.push_back(std::move(policy));
  }
  for (int i = 0; i < wrap.any_of_size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(Policy policy,
                             Create(absl::StrCat("wrap.any_of[", i, "]."), wrap.any_of(i)));
    policies.push_back(std::move(policy));
  }
  return policies;
}

Policy::Answer Policy::Descend(const v1::Module& module, int64_t numel) const {
  switch (kind_) {
    case Kind::kSize:
      if (const std::string* name = force_leaf_classes_.Match(module)) {
        return {false, Cause::kForceLeaf, name};
      }
      return numel >= min_params_ ? Answer{true, Cause::kEnough} : Answer{false, Cause::kTooFew};
    case Kind::kClass:
    case Kind::kAnnotated:
      return {true, Cause::kRecurses};
    case Kind::kAlways:
      return {true, Cause::kPolicy};
    case Kind::kNone:
      break;
  }
  return {false, Cause::kPolicy};
}

Policy::Answer Policy::Wrap(const v1::Module& module, int64_t remainder, bool is_root) const {
  switch (kind_) {
    case Kind::kSize:
      if (const std::string* name = exclude_classes_.Match(module)) {
        return {false, Cause::kExcluded, name};
      }
      if (remainder >= min_params_) return {true, Cause::kEnough};
      return is_root && skip_root_check_ ? Answer{true, Cause::kRoot}
                                         : Answer{false, Cause::kTooFew};
    case Kind::kClass: {
      const std::string* name = wrap_classes_.Match(module);
      return {name != nullptr, name != nullptr ? Cause::kListed : Cause::kNotListed, name};
    }
    case Kind::kAnnotated:
      if (module.has_wrap()) {
        return module.wrap() ? Answer{true, Cause::kAnnotated} : Answer{false, Cause::kForbidden};
      }
      return module.has_wrap_config() ? Answer{true, Cause::kAnnotated}
                                      : Answer{false, Cause::kUnannotated};
    case Kind::kAlways:
      return {true, Cause::kPolicy};
    case Kind::kNone:
      break;
  }
  return {false, Cause::kPolicy};
}

std::string Policy::WhyDescend(const Answer& answer, int64_t numel) const {
  switch (answer.cause) {
    case Cause::kForceLeaf:
      return absl::StrCat("its class ", *answer.class_name, " is in ", prefix_,
                          "force_leaf_classes, so neither it nor anything below it is a unit");
    case Cause::kEnough:
      return absl::StrCat("it holds ", numel, " elements in all, at least ", prefix_, "min_params ",
                          min_params_, ", so the policy looks below it and at it");
    case Cause::kTooFew:
      return absl::StrCat("it holds ", numel, " elements in all, fewer than ", prefix_,
                          "min_params ", min_params_,
                          ", so neither it nor anything below it is a unit");
    default:
      return absl::StrCat(prefix_, "policy ", name_,
                          answer.yes ? " looks at every module" : " looks at no module");
  }
}

std::string Policy::WhyWrap(const Answer& answer, int64_t remainder) const {
  switch (answer.cause) {
    case Cause::kExcluded:
      return absl::StrCat("its class ", *answer.class_name, " is in ", prefix_,
                          "exclude_classes, so it is never a unit itself");
    case Cause::kEnough:
      return absl::StrCat("the ", remainder, " elements left for it are at least ", prefix_,
                          "min_params ", min_params_, ", so it is a unit");
    case Cause::kTooFew:
      return absl::StrCat("the ", remainder, " elements left for it are fewer than ", prefix_,
                          "min_params ", min_params_, ", so it is none");
    case Cause::kRoot:
      return absl::StrCat("it is the root, and ", prefix_,
                          "skip_root_check makes it a unit with only ", remainder,
                          " elements left for it");
    case Cause::kListed:
      return absl::StrCat("its class ", *answer.class_name, " is in ", prefix_,
                          "wrap_classes, so it is a unit");
    case Cause::kNotListed:
      return absl::StrCat("neither its class nor a base class is in ", prefix_,
                          "wrap_classes, so it is none");
    case Cause::kAnnotated:
      return absl::StrCat(prefix_,
                          "policy annotated, and the module has wrap or a wrap_config, so ",
                          "it is a unit");
    case Cause::kForbidden:
      return absl::StrCat(prefix_,
                          "policy annotated, and the module has wrap false, so it is none");
    case Cause::kUnannotated:
      return absl::StrCat(prefix_, "policy annotated, and the module has neither wrap nor a ",
                          "wrap_config, so it is none");
    default:
      return absl::StrCat(prefix_, "policy ", name_,
                          answer.yes ? " makes every module a unit" : " makes no module a unit");
  }
}

}  // namespace tessera
