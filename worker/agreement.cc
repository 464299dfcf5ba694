#include "worker/agreement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/disagreement.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/rank_list.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "worker/blame.h"

namespace tessera {
namespace {

constexpr size_t kPayloadBytes = 128;
constexpr char kMoment[] = "every rank to say which plan it holds";
constexpr absl::string_view kSetting = "setting ";

// FNV-1a.
uint64_t Mix(uint64_t hash, absl::string_view bytes) {
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
  }
  return hash;
}

// The value of one field, at `index` of a repeated one (-1: it is not repeated).
std::string ValueOf(const google::protobuf::Message& message,
                    const google::protobuf::FieldDescriptor* field, int index) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* get = message.GetReflection();
  const auto either = [&](auto single, auto repeated) { return index < 0 ? single() : repeated(); };
  switch (field->cpp_type()) {
    case Field::CPPTYPE_DOUBLE:
      return absl::StrFormat("%.17g",
                             either([&] { return get->GetDouble(message, field); },
                                    [&] { return get->GetRepeatedDouble(message, field, index); }));
    case Field::CPPTYPE_INT64:
      return absl::StrCat(either([&] { return get->GetInt64(message, field); },
                                 [&] { return get->GetRepeatedInt64(message, field, index); }));
    case Field::CPPTYPE_INT32:
      return absl::StrCat(either([&] { return get->GetInt32(message, field); },
                                 [&] { return get->GetRepeatedInt32(message, field, index); }));
    case Field::CPPTYPE_BOOL:
      return either([&] { return get->GetBool(message, field); },
                    [&] { return get->GetRepeatedBool(message, field, index); })
                 ? "true"
                 : "false";
    case Field::CPPTYPE_ENUM:
      return absl::StrCat(either([&] { return get->GetEnumValue(message, field); },
                                 [&] { return get->GetRepeatedEnumValue(message, field, index); }));
    case Field::CPPTYPE_STRING:
      return absl::CEscape(either([&] { return get->GetString(message, field); },
                                  [&] { return get->GetRepeatedString(message, field, index); }));
    default:
      return "?";  // no job file has one
  }
}

void AddSettings(const google::protobuf::Message& message, const std::string& path,
                 std::vector<std::string>* lines) {
  const google::protobuf::Reflection* get = message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  get->ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    if (name == "model") continue;  // the plan has what it says
    const bool nested = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    const int count = field->is_repeated() ? get->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = field->is_repeated() ? i : -1;
      const std::string at = index < 0 ? name : absl::StrCat(name, "[", i, "]");
      if (nested) {
        AddSettings(index < 0 ? get->GetMessage(message, field)
                              : get->GetRepeatedMessage(message, field, i),
                    at, lines);
      } else {
        lines->push_back(absl::StrCat(kSetting, at, " ", ValueOf(message, field, index)));
      }
    }
  }
}

// As long on every rank, as an exchange must be.
std::string Padded(absl::string_view text) {
  std::string payload(text.substr(0, kPayloadBytes));
  payload.resize(kPayloadBytes, '\0');
  return payload;
}

absl::string_view Unpadded(absl::string_view payload) {
  return payload.substr(0, std::min(payload.size(), payload.find('\0')));
}

bool AllEqual(const std::vector<std::string>& payloads) {
  return std::all_of(payloads.begin(), payloads.end(),
                     [&](const std::string& payload) { return payload == payloads.front(); });
}

std::string Number(uint64_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// What ranks hold, and which; by the first of them.
using Holders = std::vector<std::pair<std::string, std::vector<int>>>;

Holders HoldersOf(const std::vector<std::string>& said) {
  Holders holders;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    const std::string text(Unpadded(said[rank]));
    auto at = std::find_if(holders.begin(), holders.end(),
                           [&](const auto& holder) { return holder.first == text; });
    if (at == holders.end()) at = holders.insert(at, {text, {}});
    at->second.push_back(static_cast<int>(rank));
  }
  return holders;
}

// Of the fewest ranks that hold something else, the first; nobody where these are not fewer.
absl::Status BlameFewest(absl::Status status, const Holders& holders) {
  const auto [fewest, most] = std::minmax_element(
      holders.begin(), holders.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (fewest->second.size() == most->second.size()) return status;
  return BlameRank(std::move(status), fewest->second.front());
}

}  // namespace

std::string AgreementText(const std::vector<v1::Unit>& units, const v1::Layout& layout,
                          const std::vector<v1::UnitLayout>& layouts, const v1::JobSpec& spec) {
  std::vector<std::string> settings;
  AddSettings(spec, "", &settings);
  return absl::StrCat(PlanText({units.begin(), units.end()}),
                      LayoutText(layout, {layouts.begin(), layouts.end()}),
                      absl::StrJoin(settings, "\n"), "\n");
}

Agreement::Agreement(std::string text)
    : text_(std::move(text)), digest_(absl::HexStringToBytes(Sha256Hex(text_))) {
  lines_ = absl::StrSplit(text_, '\n', absl::SkipEmpty());
  prefixes_.reserve(lines_.size() + 1);
  prefixes_.push_back(14695981039346656037ull);
  for (const absl::string_view line : lines_)
    prefixes_.push_back(Mix(Mix(prefixes_.back(), line), "\n"));
}

uint64_t Agreement::fingerprint() const {
  uint64_t word = 0;
  std::memcpy(&word, digest_.data(), sizeof(word));
  return word == 0 ? 1 : word;
}

uint64_t Agreement::Prefix(uint64_t lines) const {
  if (lines <= lines_.size()) return prefixes_[lines];
  return Mix(prefixes_.back(), Number(lines - lines_.size()));
}

absl::string_view Agreement::Line(uint64_t index) const {
  return index < lines_.size() ? lines_[index] : "nothing";
}

std::string Agreement::PlaceOf(uint64_t index) const {
  std::string part = "the plan";
  absl::string_view unit;
  for (uint64_t i = 0; i <= std::min<uint64_t>(index, lines_.size() - 1); ++i) {
    const absl::string_view line = lines_[i];
    if (absl::StartsWith(line, "tessera-layout ")) part = "the layout", unit = "";
    if (absl::StartsWith(line, kSetting)) part = "the job's settings", unit = "";
    // The line that names a unit differs itself.
    if (i < index && (line == "unit" || absl::StartsWith(line, "unit "))) unit = line;
  }
  if (unit.empty()) return part;
  const absl::string_view fqn = unit.substr(std::min<size_t>(unit.size(), 5));
  return absl::StrCat(part, ", in unit ", fqn.empty() ? "(root)" : fqn);
}

absl::Status Agreement::Check(Exchange exchange) const {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           exchange(absl::StrCat(digest_, Number(lines_.size())), kMoment));
  if (AllEqual(all)) return absl::OkStatus();
  uint64_t most = 0;
  for (const std::string& payload : all) {
    uint64_t lines = 0;
    std::memcpy(&lines, payload.data() + digest_.size(), sizeof(lines));
    most = std::max(most, lines);
  }
  return Explain(exchange, most);
}

// Every rank sees the same payloads, so all search alike.
absl::Status Agreement::Explain(Exchange exchange, uint64_t lines) const {
  uint64_t same = 0;
  uint64_t different = lines;
  while (different - same > 1) {
    const uint64_t middle = same + (different - same) / 2;
    TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                             exchange(Number(Prefix(middle)), kMoment));
    (AllEqual(all) ? same : different) = middle;
  }
  const absl::string_view line = Line(different - 1);
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::string> said, exchange(Padded(line), kMoment));
  if (AllEqual(said)) {
    // A long line that differs in its end.
    const size_t shown = std::min(line.size(), kPayloadBytes);
    TESSERA_ASSIGN_OR_RETURN(
        said, exchange(Padded(absl::StrCat(
                           "... ", line.substr(line.size() - shown + std::min<size_t>(shown, 4)))),
                       kMoment));
  }
  const Holders holders = HoldersOf(said);
  std::vector<std::string> held;
  for (const auto& [text, ranks] : holders)
    held.push_back(absl::StrCat(RankList(ranks), " ", ranks.size() == 1 ? "has" : "have", " \"",
                                absl::CEscape(text), "\""));
  return BlameFewest(
      WithReason(absl::FailedPreconditionError(absl::StrCat(
                     kRanksDisagree, PlaceOf(different - 1), ": ", absl::StrJoin(held, ", "),
                     "; run the same build with the same job on every host")),
                 "RANKS_DISAGREE"),
      holders);
}

}  // namespace tessera
