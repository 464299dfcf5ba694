#include "common/wrap_config.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/flat_layout.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

absl::Status CanonicaliseDType(const std::string& field, std::string* name) {
  if (name->empty()) return absl::OkStatus();
  const absl::StatusOr<DType> dtype = ParseDType(*name);
  if (!dtype.ok()) return InvalidField(field, dtype.status().message());
  if (!IsTrainable(*dtype)) {
    return InvalidField(
        field, absl::StrCat(DTypeName(*dtype),
                            " cannot be trained in; use float64, float32, float16 or bfloat16"));
  }
  *name = DTypeName(*dtype);
  return absl::OkStatus();
}

absl::Status CheckAlign(const std::string& field, int64_t bytes) {
  if (bytes >= 0 && bytes <= kMaxAlignBytes) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", bytes, "; give 0 to ", kMaxAlignBytes));
}

absl::Status CheckWords(absl::string_view prefix, const v1::WrapConfig& config) {
  const std::string& unsynced = config.unsynced_grad_dtype();
  if (config.has_unsynced_grad_dtype() && unsynced != "compute" && unsynced != "reduce") {
    return InvalidField(absl::StrCat(prefix, "unsynced_grad_dtype"),
                        absl::StrCat("\"", unsynced, "\" is unknown; use compute or reduce"));
  }
  const std::string& strategy = config.strategy();
  if (config.has_strategy() && strategy != "full_shard" && strategy != "shard_grad_op" &&
      strategy != "no_shard" && strategy != "hybrid_shard" && strategy != "hybrid_shard_zero2") {
    return InvalidField(absl::StrCat(prefix, "strategy"),
                        absl::StrCat("\"", strategy,
                                     "\" is unknown; use full_shard, shard_grad_op, no_shard, "
                                     "hybrid_shard or hybrid_shard_zero2"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CanonicaliseWrapConfig(absl::string_view prefix, v1::WrapConfig* config) {
  const auto field = [&](absl::string_view name) { return absl::StrCat(prefix, name); };
  if (config->has_param_dtype()) {
    TESSERA_RETURN_IF_ERROR(CanonicaliseDType(field("param_dtype"), config->mutable_param_dtype()));
  }
  if (config->has_reduce_dtype()) {
    TESSERA_RETURN_IF_ERROR(
        CanonicaliseDType(field("reduce_dtype"), config->mutable_reduce_dtype()));
  }
  if (config->has_buffer_dtype()) {
    TESSERA_RETURN_IF_ERROR(
        CanonicaliseDType(field("buffer_dtype"), config->mutable_buffer_dtype()));
  }
  TESSERA_RETURN_IF_ERROR(CheckWords(prefix, *config));
  TESSERA_RETURN_IF_ERROR(CheckAlign(field("param_align_bytes"), config->param_align_bytes()));
  TESSERA_RETURN_IF_ERROR(CheckAlign(field("shard_align_bytes"), config->shard_align_bytes()));
  if (config->reshard_group() >= 0) return absl::OkStatus();
  return InvalidField(field("reshard_group"),
                      absl::StrCat("is ", config->reshard_group(), "; give 0 or more"));
}

void MergeWrapConfig(const v1::WrapConfig& over, v1::WrapConfig* config) {
  // Every field is optional and single: merging takes those that are present.
  config->MergeFrom(over);
}

}  // namespace tessera
