// JSON -> protobuf message, with errors that a person can act on: protobuf's own, on one line, with
// the key that is to blame and the source's name in front.
#ifndef TESSERA_COMMON_JSON_MESSAGE_H_
#define TESSERA_COMMON_JSON_MESSAGE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace tessera {

// Replaces `message` by what `json` (proto3's JSON mapping) says. `source_name` is a file or flag
// for the message ("": the caller says it), and `kind` what the text should be, e.g. "a ModelSpec".
// INVALID_ARGUMENT: not JSON, an unknown key, or a value that does not fit its key; Field(status)
// is the key's dotted path where there is one.
absl::Status ParseJson(absl::string_view json, absl::string_view source_name,
                       absl::string_view kind, google::protobuf::Message* message);

}  // namespace tessera

#endif  // TESSERA_COMMON_JSON_MESSAGE_H_
