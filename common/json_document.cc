#include "common/json_document.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/errors.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxShown = 120;

// Looks at the text before anything is built of it. Stops at the first fault.
class Check : public nlohmann::json_sax<Json> {
 public:
  explicit Check(int max_depth) : max_depth_(max_depth) {}

  const std::string& fault() const { return fault_; }

  bool null() override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_unsigned(number_unsigned_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool string(string_t&) override { return Scalar(); }
  bool binary(binary_t&) override { return Fault("holds binary data"); }

  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return Deeper();
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return Scalar();
    return Deeper();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    return Fault(absl::StrCat("has the key \"", ShortAscii(name), "\" twice in one object"));
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fault(absl::StrCat("is not JSON: ", JsonErrorText(error.what())));
  }

 private:
  bool Fault(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool Scalar() { return depth_ > 0 || Fault("is not a JSON object"); }
  bool Deeper() {
    if (++depth_ <= max_depth_) return true;
    return Fault(absl::StrCat("is nested more than ", max_depth_, " levels deep"));
  }

  int max_depth_;
  int depth_ = 0;
  std::vector<absl::flat_hash_set<std::string>> keys_;  // of the objects that are open
  std::string fault_;
};

}  // namespace

std::string ShortAscii(absl::string_view text) {
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (!absl::ascii_isascii(c) || absl::ascii_iscntrl(c)) c = '?';
  }
  if (text.size() > kMaxShown) absl::StrAppend(&shown, "...");
  return shown;
}

std::string JsonErrorText(absl::string_view what) {
  const size_t prefix = what.find("] ");
  if (absl::StartsWith(what, "[json.exception") && prefix != absl::string_view::npos) {
    what.remove_prefix(prefix + 2);
  }
  absl::ConsumePrefix(&what, "parse error ");
  return ShortAscii(what);
}

std::string ShowJson(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_string()) {
    return absl::StrCat("\"", ShortAscii(value.get_ref<const std::string&>()), "\"");
  }
  return ShortAscii(value.dump());
}

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view source_name,
                                     int64_t max_bytes, int max_depth) {
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    return InvalidField(source_name, absl::StrCat("has more than ", max_bytes, " bytes"));
  }
  Check check(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &check)) {
    return InvalidField(source_name, check.fault());
  }
  // The text is known to be JSON, so this does not fail and would not throw.
  return Json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
}

}  // namespace tessera
