#include "common/logging.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

std::string& Prefix() {
  static auto& prefix = *new std::string("tessera");
  return prefix;
}

void Write(absl::string_view severity, absl::string_view message) {
  const std::string line = absl::StrCat(Prefix(), ": ", severity, message, "\n");
  // One write, so that lines of several processes do not mix; a stderr that is closed or full is
  // nobody's error.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void SetLogPrefix(absl::string_view prefix) { Prefix() = std::string(prefix); }
void LogInfo(absl::string_view message) { Write("", message); }
void LogError(absl::string_view message) { Write("error: ", message); }

}  // namespace tessera
