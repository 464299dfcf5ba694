// What a module or a parameter must be by itself; ModelIndex::Create asks these at each. See
// common/model_spec.h for the rules. Every error is INVALID_ARGUMENT and names `fqn`.
#ifndef TESSERA_COMMON_MODEL_CHECKS_H_
#define TESSERA_COMMON_MODEL_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

absl::Status TooDeep(absl::string_view fqn);
// Of parameters, buffers and children: segments of an FQN, each there once.
absl::Status CheckNames(const v1::Module& module, absl::string_view fqn);
absl::Status CheckClassNames(const v1::Module& module, absl::string_view fqn);
absl::Status CheckAlias(const v1::Module& module, absl::string_view fqn);
absl::Status CheckWrapConfig(const v1::Module& module, absl::string_view fqn);
absl::Status CheckBuffer(const v1::Buffer& buffer, absl::string_view fqn);
absl::Status CheckInit(const v1::Init& init, absl::string_view fqn);
absl::StatusOr<int64_t> ParameterNumel(const v1::Parameter& parameter, absl::string_view fqn);
absl::StatusOr<DType> ParameterDType(const v1::Parameter& parameter, absl::string_view fqn);

}  // namespace tessera

#endif  // TESSERA_COMMON_MODEL_CHECKS_H_
