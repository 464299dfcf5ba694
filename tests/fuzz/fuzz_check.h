// What every reader owes to whoever gave it bytes.
#ifndef TESSERA_TESTS_FUZZ_FUZZ_CHECK_H_
#define TESSERA_TESTS_FUZZ_FUZZ_CHECK_H_

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Ends the process, which is how a fuzzer learns of a fault, unless `status` is OK or
// INVALID_ARGUMENT on one line.
inline void CheckAnswer(const absl::Status& status) {
  if (status.ok()) return;
  const bool one_line = status.message().find('\n') == absl::string_view::npos;
  if (absl::IsInvalidArgument(status) && one_line) return;
  std::fprintf(stderr, "unfit answer: %s\n", status.ToString().c_str());
  std::abort();
}

// Ends the process where `holds` is false; `what` should hold.
inline void CheckThat(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace tessera

#endif  // TESSERA_TESTS_FUZZ_FUZZ_CHECK_H_
