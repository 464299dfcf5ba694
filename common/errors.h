// What a status carries beside its code and message, so that adapters can pass it on without
// parsing text.
//
//   return WithReason(absl::FailedPreconditionError("..."), "STALE_GENERATION");
//   return InvalidField("mesh.min_workers", "is 0; give at least 1");
//
// common/grpc_status.h turns reasons into google.rpc.ErrorInfo and fields into
// google.rpc.BadRequest, and back.
#ifndef TESSERA_COMMON_ERRORS_H_
#define TESSERA_COMMON_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// `status` with a machine-readable reason in UPPER_SNAKE. An OK status stays as it is.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// The reason given with WithReason; "" where there is none.
std::string Reason(const absl::Status& status);

// INVALID_ARGUMENT whose message is "FIELD: MESSAGE" and which remembers FIELD: a dotted path of
// the job file, a flag, a file name or an FQN. MESSAGE says what is wrong and what to do; it may
// quote what it was given, since control characters become spaces and the whole stays on one line.
absl::Status InvalidField(absl::string_view field, absl::string_view message);

// The field given with InvalidField; "" where there is none.
std::string Field(const absl::Status& status);

// `status` with `context` and ": " before its message; code, reason and field stay. An OK status
// stays as it is.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace tessera

#endif  // TESSERA_COMMON_ERRORS_H_
