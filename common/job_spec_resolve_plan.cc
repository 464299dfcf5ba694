// The part of ResolveJobSpec that says how a model is cut into units and in which dtypes they live.
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/flat_layout.h"
#include "common/fqn_pattern.h"
#include "common/job_spec_checks.h"
#include "common/mixed_precision.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"

namespace tessera {
namespace {

using Names = google::protobuf::RepeatedPtrField<std::string>;

// Each is tried at every module.
constexpr int kMaxPatterns = 1'000;

// A set of classes whose default an empty list takes; [""] is the empty set.
template <size_t kCount>
absl::Status ResolveClasses(const std::string& field, const char* const (&defaults)[kCount],
                            Names* names) {
  if (names->empty()) {
    for (const char* name : defaults) *names->Add() = name;
  }
  if (names->size() == 1) return absl::OkStatus();
  for (const std::string& name : *names) {
    if (!name.empty()) continue;
    return InvalidField(field, "has \"\" beside other names; drop it ([\"\"] is the empty set)");
  }
  return absl::OkStatus();
}

bool HasSizeFields(const v1::WrapSpec& wrap) {
  return wrap.has_min_params() || !wrap.exclude_classes().empty() ||
         !wrap.force_leaf_classes().empty() || wrap.has_skip_root_check();
}

absl::Status CheckBelongs(const std::string& prefix, const v1::WrapSpec& wrap) {
  const auto check = [&](bool given, absl::string_view field,
                         absl::string_view policy) -> absl::Status {
    if (!given || wrap.policy() == policy) return absl::OkStatus();
    return InvalidField(absl::StrCat(prefix, field),
                        absl::StrCat("is for ", prefix, "policy ", policy, ", and the policy is ",
                                     wrap.policy(), "; change the policy or drop it"));
  };
  TESSERA_RETURN_IF_ERROR(check(!wrap.wrap_classes().empty(), "wrap_classes", "class"));
  TESSERA_RETURN_IF_ERROR(check(wrap.has_min_params(), "min_params", "size"));
  TESSERA_RETURN_IF_ERROR(check(!wrap.exclude_classes().empty(), "exclude_classes", "size"));
  TESSERA_RETURN_IF_ERROR(check(!wrap.force_leaf_classes().empty(), "force_leaf_classes", "size"));
  return check(wrap.has_skip_root_check(), "skip_root_check", "size");
}

// One policy and what belongs to it. `root_unit` is the job's.
absl::Status ResolvePolicy(const std::string& prefix, bool builtin, const std::string& root_unit,
                           v1::WrapSpec* wrap) {
  if (!wrap->has_policy()) {
    const bool by_class = !wrap->wrap_classes().empty() || (builtin && prefix == "wrap.");
    wrap->set_policy(by_class ? "class" : "size");
  }
  TESSERA_RETURN_IF_ERROR(CheckOneOf(absl::StrCat(prefix, "policy"), wrap->policy(),
                                     {"size", "class", "always", "none", "annotated"}));
  TESSERA_RETURN_IF_ERROR(CheckBelongs(prefix, *wrap));
  if (wrap->policy() == "class" && wrap->wrap_classes().empty()) {
    if (!builtin) {
      return InvalidField(absl::StrCat(prefix, "wrap_classes"),
                          "is empty; name the classes that become units");
    }
    wrap->add_wrap_classes("Block");
  }
  if (wrap->policy() != "size") return absl::OkStatus();
  TESSERA_DEFAULT(wrap, min_params, kDefaultMinParams);
  TESSERA_DEFAULT(wrap, skip_root_check, false);
  TESSERA_RETURN_IF_ERROR(
      CheckRange(absl::StrCat(prefix, "min_params"), wrap->min_params(), 0, kMaxModelNumel));
  TESSERA_RETURN_IF_ERROR(ResolveClasses(absl::StrCat(prefix, "exclude_classes"),
                                         kDefaultExcludeClasses, wrap->mutable_exclude_classes()));
  TESSERA_RETURN_IF_ERROR(ResolveClasses(absl::StrCat(prefix, "force_leaf_classes"),
                                         kDefaultForceLeafClasses,
                                         wrap->mutable_force_leaf_classes()));
  if (!wrap->skip_root_check() || root_unit == "by_policy") return absl::OkStatus();
  return InvalidField(absl::StrCat(prefix, "skip_root_check"),
                      "changes nothing where wrap.root_unit is always; give by_policy or drop it");
}

absl::Status ResolveAnyOf(v1::WrapSpec* wrap) {
  if (wrap->has_policy() || !wrap->wrap_classes().empty() || HasSizeFields(*wrap)) {
    return InvalidField(wrap->has_policy() ? "wrap.policy" : "wrap.any_of",
                        "stands beside the other; put the policy and what belongs to it into "
                        "wrap.any_of, or drop wrap.any_of");
  }
  for (int i = 0; i < wrap->any_of_size(); ++i) {
    const std::string prefix = absl::StrCat("wrap.any_of[", i, "].");
    v1::WrapSpec* one = wrap->mutable_any_of(i);
    if (!one->has_policy() && one->wrap_classes().empty() && !HasSizeFields(*one)) {
      return InvalidField(absl::StrCat(prefix, "policy"), "is absent; give one");
    }
    v1::WrapSpec rest = *one;
    rest.clear_policy();
    rest.clear_wrap_classes();
    rest.clear_min_params();
    rest.clear_exclude_classes();
    rest.clear_force_leaf_classes();
    rest.clear_skip_root_check();
    if (rest.ByteSizeLong() != 0) {
      return InvalidField(absl::StrCat("wrap.any_of[", i, "]"),
                          "has more than a policy and what belongs to it; give the rest in wrap");
    }
    TESSERA_RETURN_IF_ERROR(ResolvePolicy(prefix, /*builtin=*/false, wrap->root_unit(), one));
  }
  return absl::OkStatus();
}

absl::Status CheckPatterns(const std::string& field, const Names& patterns) {
  int wildcards = 0;
  for (const std::string& text : patterns) {
    const absl::StatusOr<FqnPattern> pattern = FqnPattern::Parse(text);
    if (!pattern.ok()) return InvalidField(field, pattern.status().message());
    if (pattern->has_wildcard() && ++wildcards > kMaxPatterns) {
      return InvalidField(field, absl::StrCat("has more than ", kMaxPatterns,
                                              " patterns with *; join some or give plain FQNs"));
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveOverrides(v1::WrapSpec* wrap) {
  if (wrap->overrides_size() > kMaxPatterns) {
    return InvalidField("wrap.overrides", absl::StrCat("has ", wrap->overrides_size(),
                                                       " entries; give at most ", kMaxPatterns));
  }
  for (int i = 0; i < wrap->overrides_size(); ++i) {
    const std::string field = absl::StrCat("wrap.overrides[", i, "]");
    v1::WrapOverride* one = wrap->mutable_overrides(i);
    if (!one->has_fqn()) {
      return InvalidField(absl::StrCat(field, ".fqn"), "is absent; name a unit (\"\": the root)");
    }
    const absl::StatusOr<FqnPattern> pattern = FqnPattern::Parse(one->fqn());
    if (!pattern.ok()) {
      return InvalidField(absl::StrCat(field, ".fqn"), pattern.status().message());
    }
    if (one->config().ByteSizeLong() == 0) {
      return InvalidField(absl::StrCat(field, ".config"), "sets nothing; give a setting");
    }
    TESSERA_RETURN_IF_ERROR(
        CanonicaliseWrapConfig(absl::StrCat(field, ".config."), one->mutable_config()));
  }
  return absl::OkStatus();
}

absl::Status ResolveLossScale(const std::string& text) {
  double value = 0;
  if (text == "none" || text == "dynamic" ||
      (absl::SimpleAtod(text, &value) && std::isfinite(value) && value > 0)) {
    return absl::OkStatus();
  }
  return InvalidField(
      "mixed_precision.loss_scale",
      absl::StrCat("is \"", text, "\"; give none, dynamic or a finite number above 0"));
}

}  // namespace

absl::Status ResolveWrap(bool builtin, v1::WrapSpec* wrap) {
  TESSERA_DEFAULT(wrap, root_unit, "always");
  TESSERA_RETURN_IF_ERROR(CheckOneOf("wrap.root_unit", wrap->root_unit(), {"always", "by_policy"}));
  if (wrap->any_of().empty()) {
    TESSERA_RETURN_IF_ERROR(ResolvePolicy("wrap.", builtin, wrap->root_unit(), wrap));
  } else {
    TESSERA_RETURN_IF_ERROR(ResolveAnyOf(wrap));
  }
  TESSERA_DEFAULT(wrap, ties, "lift");
  TESSERA_RETURN_IF_ERROR(CheckOneOf("wrap.ties", wrap->ties(), {"lift", "reject"}));
  TESSERA_DEFAULT(wrap, mixed_dtypes, "refuse");
  TESSERA_RETURN_IF_ERROR(
      CheckOneOf("wrap.mixed_dtypes", wrap->mixed_dtypes(), {"refuse", "split"}));
  TESSERA_RETURN_IF_ERROR(CheckPatterns("wrap.wrap_patterns", wrap->wrap_patterns()));
  TESSERA_RETURN_IF_ERROR(CheckPatterns("wrap.ignore", wrap->ignore()));
  TESSERA_RETURN_IF_ERROR(ResolveOverrides(wrap));
  TESSERA_DEFAULT(wrap, param_align_bytes, 16);
  TESSERA_DEFAULT(wrap, shard_align_bytes, 128);
  TESSERA_RETURN_IF_ERROR(
      CheckRange("wrap.param_align_bytes", wrap->param_align_bytes(), 0, kMaxAlignBytes));
  return CheckRange("wrap.shard_align_bytes", wrap->shard_align_bytes(), 0, kMaxAlignBytes);
}

absl::Status ResolveMixedPrecision(v1::MixedPrecisionSpec* spec) {
  TESSERA_DEFAULT(spec, param_dtype, "");
  TESSERA_DEFAULT(spec, reduce_dtype, "");
  TESSERA_DEFAULT(spec, buffer_dtype, "");
  TESSERA_DEFAULT(spec, unsynced_grad_dtype, "compute");
  TESSERA_DEFAULT(spec, loss_scale, "none");
  TESSERA_DEFAULT(spec, divide_factor, 0);
  TESSERA_DEFAULT(spec, cast_forward_inputs, false);
  TESSERA_DEFAULT(spec, cast_root_forward_inputs, true);
  TESSERA_DEFAULT(spec, full_precision_eval, false);
  // What the model's dtype is does not matter for whether the names are good.
  TESSERA_ASSIGN_OR_RETURN(const UnitDTypes dtypes, ResolveDTypes(v1::FLOAT32, *spec));
  TESSERA_ASSIGN_OR_RETURN(const DType buffer, ResolveBufferDType(v1::FLOAT32, *spec));
  if (!spec->param_dtype().empty()) spec->set_param_dtype(DTypeName(dtypes.param));
  if (!spec->reduce_dtype().empty()) spec->set_reduce_dtype(DTypeName(dtypes.reduce));
  if (!spec->buffer_dtype().empty()) spec->set_buffer_dtype(DTypeName(buffer));
  TESSERA_RETURN_IF_ERROR(CheckOneOf("mixed_precision.unsynced_grad_dtype",
                                     spec->unsynced_grad_dtype(), {"compute", "reduce"}));
  // Under one name from here on.
  TESSERA_ASSIGN_OR_RETURN(const bool keep, KeepsGradsInReduceDType(*spec));
  spec->set_keep_grads_in_reduce_dtype(keep);
  spec->clear_keep_low_precision_grads();
  TESSERA_RETURN_IF_ERROR(ResolveLossScale(spec->loss_scale()));
  TESSERA_RETURN_IF_ERROR(CheckAtLeastZero("mixed_precision.divide_factor", spec->divide_factor()));
  return ResolveClasses("mixed_precision.ignored_classes", kDefaultIgnoredClasses,
                        spec->mutable_ignored_classes());
}

}  // namespace tessera
