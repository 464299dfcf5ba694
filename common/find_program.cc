#include "common/find_program.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace tessera {
namespace {

bool IsExecutable(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) {
    if (IsExecutable(name)) return name;
    return InvalidField("PROGRAM", absl::StrCat("\"", name, "\" is no program that can be run"));
  }
  for (const absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const std::string candidate = absl::StrCat(directory, "/", name);
    if (IsExecutable(candidate)) return candidate;
  }
  return InvalidField("PROGRAM", absl::StrCat("\"", name, "\" is not found in PATH"));
}

}  // namespace tessera
