// Settings of a single unit: what wrap_config of a module and wrap.overrides of a job may say. And
// what FSDP and FairScale take where a policy is not told otherwise.
#ifndef TESSERA_COMMON_WRAP_CONFIG_H_
#define TESSERA_COMMON_WRAP_CONFIG_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

inline constexpr int64_t kDefaultMinParams = 100'000'000;
inline constexpr const char* kDefaultExcludeClasses[] = {"ModuleList", "ModuleDict"};
inline constexpr const char* kDefaultForceLeafClasses[] = {"MultiheadAttention"};
inline constexpr const char* kDefaultIgnoredClasses[] = {"_BatchNorm", "BatchNorm1d", "BatchNorm2d",
                                                         "BatchNorm3d", "SyncBatchNorm"};

// Checks each setting by itself and gives dtypes their canonical names. INVALID_ARGUMENT: a dtype
// that cannot be trained in, an unknown word or a number out of range; Field(status) is `prefix`
// followed by the setting, e.g. "wrap.overrides[0].config.param_dtype".
absl::Status CanonicaliseWrapConfig(absl::string_view prefix, v1::WrapConfig* config);

// What `over` says, over what `config` says.
void MergeWrapConfig(const v1::WrapConfig& over, v1::WrapConfig* config);

}  // namespace tessera

#endif  // TESSERA_COMMON_WRAP_CONFIG_H_
