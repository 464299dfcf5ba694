// Finds a program by name.
#ifndef TESSERA_COMMON_FIND_PROGRAM_H_
#define TESSERA_COMMON_FIND_PROGRAM_H_

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The path of the program `name`: itself where it has a slash, else looked for in the directories
// of `path` (as in PATH), as a shell does. INVALID_ARGUMENT (field PROGRAM): there is none that can
// be run.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path);

}  // namespace tessera

#endif  // TESSERA_COMMON_FIND_PROGRAM_H_
