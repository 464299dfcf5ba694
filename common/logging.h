// Lines on stderr, whole even when several threads or processes write at once. stdout is for
// results.
#ifndef TESSERA_COMMON_LOGGING_H_
#define TESSERA_COMMON_LOGGING_H_

#include "absl/strings/string_view.h"

namespace tessera {

// What stands before every line of this process, e.g. "tessera-worker rank 1". Call before other
// threads start.
void SetLogPrefix(absl::string_view prefix);

// Writes "PREFIX: MESSAGE" and a newline in one write. Never blocks on a lock.
void LogInfo(absl::string_view message);
void LogError(absl::string_view message);

}  // namespace tessera

#endif  // TESSERA_COMMON_LOGGING_H_
