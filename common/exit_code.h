// What a program's exit code says: one rule for the command, the coordinator and the agent.
#ifndef TESSERA_COMMON_EXIT_CODE_H_
#define TESSERA_COMMON_EXIT_CODE_H_

#include "absl/status/status.h"

namespace tessera {

// 0 OK; 2 bad input, or asked for what there is not; 3 unavailable or late; 4 not found; 5 a
// precondition, e.g. a name or port that is taken; 1 everything else.
int ExitCode(const absl::Status& status);

}  // namespace tessera

#endif  // TESSERA_COMMON_EXIT_CODE_H_
