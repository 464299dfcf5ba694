// The text that a language model trains on: read whole, the last tenth held out for evaluation.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const TextData text,
//       LoadText(spec.data(), spec.global_batch(), spec.model().context()));
//
// The client calls it too, to refuse a bad file before a job exists. Thread-safety: a pure function
// of the files.
#ifndef TESSERA_COMMON_TEXT_DATA_H_
#define TESSERA_COMMON_TEXT_DATA_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// The default text: a folder that every Debian machine has, some 260 KB of English.
inline constexpr char kDefaultTextFolder[] = "/usr/share/common-licenses";

struct TextData {
  std::string train;
  std::string held_out;  // the last total / 10 bytes, rounded down
};

// Reads the file `path`, or with "" kDefaultTextFolder (as ReadTextFolder). A sequence is `context`
// bytes and the byte after. INVALID_ARGUMENT of field "data", naming the file and what to do: it is
// missing, no regular file, not readable, empty, shorter than one batch of `global_batch`
// sequences, or so short that the held-out tenth has not one sequence.
absl::StatusOr<TextData> LoadText(absl::string_view path, int64_t global_batch, int64_t context);

// The regular files directly in `folder`, in byte order of name, one after another; symbolic links
// and folders are skipped. INVALID_ARGUMENT of field "data": the folder or one of its files cannot
// be read.
absl::StatusOr<std::string> ReadTextFolder(absl::string_view folder);

}  // namespace tessera

#endif  // TESSERA_COMMON_TEXT_DATA_H_
