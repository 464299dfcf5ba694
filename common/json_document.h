// JSON that strangers wrote, read within bounds: an object at the top, valid UTF-8, no key twice in
// one object, nesting no deeper than asked. Parsing is iterative, and its memory is proportional to
// the text.
//
//   TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config,
//                            ParseJsonObject(text, "config.json", 4 << 20, 16));
//
// No exception crosses these functions. Thread-safety: pure functions of values.
#ifndef TESSERA_COMMON_JSON_DOCUMENT_H_
#define TESSERA_COMMON_JSON_DOCUMENT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// INVALID_ARGUMENT, with `source_name` in front: more than `max_bytes`, not JSON, not an object, a
// key that is twice in an object, or objects and arrays more than `max_depth` deep (the top is 1).
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text,
                                               absl::string_view source_name, int64_t max_bytes,
                                               int max_depth);

// What nlohmann's parser says, short and in ASCII, without its own prefix.
std::string JsonErrorText(absl::string_view what);

// `text` on one line of ASCII and no longer than what a message should quote.
std::string ShortAscii(absl::string_view text);

// A value as a message shows it: scalars shortened, "an object" or "an array" for the others.
std::string ShowJson(const nlohmann::json& value);

}  // namespace tessera

#endif  // TESSERA_COMMON_JSON_DOCUMENT_H_
