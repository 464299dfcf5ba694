#include "common/json_message.h"

#include <google/protobuf/util/json_util.h>

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace tessera {
namespace {

constexpr absl::string_view kUnknownKey = ": Cannot find field.";
constexpr absl::string_view kBadValue = "invalid value ";
constexpr absl::string_view kForType = " for type ";
constexpr size_t kMaxExcerpt = 80;

// On one line and no longer than an excerpt: what is quoted may be anything.
std::string Excerpt(absl::string_view text) {
  std::string line(absl::StripAsciiWhitespace(text).substr(0, kMaxExcerpt));
  for (char& c : line) {
    if (absl::ascii_iscntrl(c)) c = ' ';
  }
  return line;
}

absl::string_view PlainType(absl::string_view type) {
  static constexpr std::pair<absl::string_view, absl::string_view> kPlain[] = {
      {"TYPE_INT64", "an integer"}, {"TYPE_INT32", "an integer"},   {"TYPE_DOUBLE", "a number"},
      {"TYPE_STRING", "a string"},  {"TYPE_BOOL", "true or false"},
  };
  for (const auto& [name, plain] : kPlain) {
    if (type == name) return plain;
  }
  if (absl::EndsWith(type, ".Duration")) return "a duration such as \"5s\" or \"0.5s\"";
  return "an object";
}

// "(a.b) c: Cannot find field." -> a.b.c; the parentheses are absent at the top.
std::string PathOf(absl::string_view where) {
  if (!absl::ConsumePrefix(&where, "(")) return Excerpt(where);
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(where, absl::MaxSplits(") ", 1));
  return absl::StrCat(parts.first, ".", Excerpt(parts.second));
}

// What protobuf's reader says is terse and sometimes spans lines; the texts matched here are those
// of 3.21, and any other is passed on.
absl::Status Explain(absl::string_view text, absl::string_view kind) {
  if (absl::EndsWith(text, kUnknownKey)) {
    text.remove_suffix(kUnknownKey.size());
    return InvalidField(PathOf(text), absl::StrCat("unknown key; ", kind, " has no such field"));
  }
  const size_t close = text.find("): ");
  if (absl::StartsWith(text, "(") && close != absl::string_view::npos) {
    const absl::string_view path = text.substr(1, close - 1);
    absl::string_view rest = text.substr(close + 3);
    const size_t type = rest.rfind(kForType);
    if (absl::ConsumePrefix(&rest, kBadValue) && type != absl::string_view::npos) {
      const absl::string_view plain = PlainType(text.substr(close + 3 + type + kForType.size()));
      const absl::string_view value = rest.substr(0, type - kBadValue.size());
      // For durations protobuf puts a sentence where the value stands elsewhere.
      if (absl::StartsWith(value, "Field '")) {
        return InvalidField(path, absl::StrCat("is not ", plain));
      }
      return InvalidField(path, absl::StrCat(Excerpt(value), " is not ", plain));
    }
  }
  if (absl::ConsumePrefix(&text, ": ")) {
    return absl::InvalidArgumentError(absl::StrCat("not ", kind, ": ", Excerpt(text)));
  }
  const std::pair<absl::string_view, absl::string_view> lines =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  std::string message = absl::StrCat("not ", kind, " in JSON: ", Excerpt(lines.first));
  const std::string near = Excerpt(lines.second.substr(0, lines.second.find('\n')));
  if (!near.empty() && near != "^") absl::StrAppend(&message, " Near: ", near);
  return absl::InvalidArgumentError(message);
}

}  // namespace

absl::Status ParseJson(absl::string_view json, absl::string_view source_name,
                       absl::string_view kind, google::protobuf::Message* message) {
  message->Clear();
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), message);
  if (status.ok()) return absl::OkStatus();
  message->Clear();
  const auto text = status.message();
  const absl::Status error = Explain(absl::string_view(text.data(), text.size()), kind);
  return source_name.empty() ? error : Annotate(error, source_name);
}

}  // namespace tessera
