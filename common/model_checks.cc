#include "common/model_checks.h"

#include <cmath>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/wrap_config.h"

namespace tessera {
namespace {

std::string Shown(absl::string_view fqn) { return fqn.empty() ? "root" : std::string(fqn); }

// Fails for what cannot be a segment of an FQN.
absl::Status CheckName(absl::string_view name, absl::string_view parent_fqn,
                       absl::string_view what) {
  const auto bad = [&](absl::string_view message) {
    return InvalidField(Shown(parent_fqn), absl::StrCat("has a ", what, " ", message));
  };
  if (name.empty()) return bad("without a name; give it one");
  for (const char c : name) {
    if (c == '.')
      return bad(absl::StrCat("named \"", name, "\"; names hold no dot, nest modules instead"));
    if (absl::ascii_iscntrl(c)) return bad("whose name holds a control character; rename it");
  }
  return absl::OkStatus();
}

// Few names are compared with each other; only many are worth a set.
class UniqueNames {
 public:
  explicit UniqueNames(int count) : many_(count > kFew) {}
  bool Insert(absl::string_view name) {
    if (many_) return set_.insert(name).second;
    for (const absl::string_view seen : few_) {
      if (seen == name) return false;
    }
    few_.push_back(name);
    return true;
  }

 private:
  static constexpr int kFew = 8;
  bool many_;
  absl::InlinedVector<absl::string_view, kFew> few_;
  absl::flat_hash_set<absl::string_view> set_;
};

}  // namespace

absl::Status TooDeep(absl::string_view fqn) {
  return InvalidField(fqn, absl::StrCat("is nested more than ", kMaxModuleDepth,
                                        " modules deep; flatten the model"));
}

absl::Status CheckNames(const v1::Module& module, absl::string_view fqn) {
  UniqueNames names(module.parameters_size() + module.buffers_size() + module.children_size());
  const auto check = [&](const std::string& name, absl::string_view what) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckName(name, fqn, what));
    if (names.Insert(name)) return absl::OkStatus();
    return InvalidField(
        JoinFqn(fqn, name),
        "is there twice; parameters, buffers and children of a module need names of their own");
  };
  for (const v1::Parameter& parameter : module.parameters()) {
    TESSERA_RETURN_IF_ERROR(check(parameter.name(), "parameter"));
  }
  for (const v1::Buffer& buffer : module.buffers()) {
    TESSERA_RETURN_IF_ERROR(check(buffer.name(), "buffer"));
  }
  for (const v1::Module& child : module.children()) {
    TESSERA_RETURN_IF_ERROR(check(child.name(), "child"));
  }
  return absl::OkStatus();
}

absl::Status CheckClassNames(const v1::Module& module, absl::string_view fqn) {
  const auto check = [&](absl::string_view name) -> absl::Status {
    for (const char c : name) {
      if (absl::ascii_iscntrl(c)) {
        return InvalidField(Shown(fqn), "has a class name with a control character; rename it");
      }
    }
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(check(module.class_name()));
  for (const std::string& name : module.base_classes()) TESSERA_RETURN_IF_ERROR(check(name));
  return absl::OkStatus();
}

absl::Status CheckAlias(const v1::Module& module, absl::string_view fqn) {
  if (module.class_name().empty() && module.base_classes().empty() && module.parameters().empty() &&
      module.buffers().empty() && module.children().empty() && !module.has_wrap() &&
      !module.has_wrap_config()) {
    return absl::OkStatus();
  }
  return InvalidField(fqn, absl::StrCat("is same_as \"", module.same_as(),
                                        "\" and has content of its own; leave it only a name"));
}

absl::Status CheckWrapConfig(const v1::Module& module, absl::string_view fqn) {
  v1::WrapConfig config = module.wrap_config();
  const absl::Status status = CanonicaliseWrapConfig("", &config);
  if (status.ok()) return status;
  return InvalidField(Shown(fqn), absl::StrCat("has a wrap_config whose ", status.message()));
}

absl::Status CheckBuffer(const v1::Buffer& buffer, absl::string_view fqn) {
  const absl::StatusOr<DType> dtype = ParseDType(buffer.dtype());
  if (!dtype.ok()) return InvalidField(fqn, dtype.status().message());
  for (const int64_t extent : buffer.shape()) {
    if (extent < 0)
      return InvalidField(fqn, absl::StrCat("has the extent ", extent, "; give 0 or more"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ParameterNumel(const v1::Parameter& parameter, absl::string_view fqn) {
  if (parameter.shape().empty()) {
    return InvalidField(fqn, "is a scalar, which cannot be sharded; give it the shape [1]");
  }
  const auto bad = [&](absl::string_view why) {
    return InvalidField(
        fqn, absl::StrCat("has the shape [", absl::StrJoin(parameter.shape(), ","), "]", why));
  };
  int64_t numel = 1;
  for (const int64_t extent : parameter.shape()) {
    if (extent <= 0) return bad("; every extent must be at least 1");
    if (__builtin_mul_overflow(numel, extent, &numel)) {
      return bad(", which overflows int64; correct it");
    }
  }
  return numel;
}

absl::StatusOr<DType> ParameterDType(const v1::Parameter& parameter, absl::string_view fqn) {
  const absl::StatusOr<DType> dtype = ParseDType(parameter.dtype());
  if (!dtype.ok()) return InvalidField(fqn, dtype.status().message());
  if (!IsTrainable(*dtype)) {
    return InvalidField(fqn,
                        absl::StrCat("has the dtype ", DTypeName(*dtype),
                                     ", which cannot be trained; use float64, float32, float16 or "
                                     "bfloat16, or make it a buffer"));
  }
  return *dtype;
}

absl::Status CheckInit(const v1::Init& init, absl::string_view fqn) {
  const absl::string_view kind = init.kind();
  if (kind != "normal" && kind != "uniform" && kind != "zeros" && kind != "ones") {
    return InvalidField(
        fqn, absl::StrCat("has the init kind \"", kind, "\"; use normal, uniform, zeros or ones"));
  }
  if (init.has_std() && (kind != "normal" || !std::isfinite(init.std()) || init.std() < 0)) {
    return InvalidField(fqn,
                        "has an init with a std that it cannot use; std is for normal, 0 or more");
  }
  if (init.has_low() || init.has_high()) {
    const double low = init.has_low() ? init.low() : 0;
    const double high = init.has_high() ? init.high() : 1;
    if (kind != "uniform" || !std::isfinite(low) || !std::isfinite(high) || low >= high) {
      return InvalidField(
          fqn,
          "has an init with low or high that it cannot use; they are for uniform, and low "
          "is less than high");
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
