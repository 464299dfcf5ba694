#include "coordinator/rank_positions.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/rank_list.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

// Longer texts of ranks are cut.
constexpr size_t kLongestWhat = 120;
// So many ranks are described in a sentence; the others are counted.
constexpr size_t kDescribed = 8;

std::string Seconds(absl::Duration time) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(std::max(time, absl::ZeroDuration())));
}

// "reduce of unit h.1", or what the rank calls it.
std::string WhereText(const v1::Position& position, UnitNames names) {
  const bool known = position.operation() != v1::OPERATION_UNSPECIFIED;
  if (known && position.unit() >= 0)
    return absl::StrCat(OperationText(position.operation()), " of unit ", names(position.unit()));
  if (!position.what().empty()) return position.what();
  return known ? OperationText(position.operation()) : "";
}

std::string Doing(const v1::Position& position, UnitNames names) {
  const std::string place = WhereText(position, names);
  switch (position.activity()) {
    case v1::COMPUTING:
      if (position.unit() < 0) return "computes, on no unit yet";
      return absl::StrCat("computes on unit ", names(position.unit()), " (",
                          OperationText(position.operation()), ")");
    case v1::WAITING:
      return place.empty() ? "waits" : absl::StrCat("waits in ", place);
    case v1::WORKING:
      return place.empty() ? "works" : absl::StrCat("works on ", place);
    case v1::SAVING:
      return place.empty() ? "saves" : absl::StrCat("saves: ", place);
    case v1::REJOINING:
      return "waits for the next generation";
    default:
      return "is somewhere that this coordinator does not know";
  }
}

bool MakesSense(const v1::Position& position, int units) {
  return position.unit() >= -1 && position.unit() < units && position.step() >= 0 &&
         position.sequence() >= 0 && v1::Operation_IsValid(position.operation()) &&
         v1::Activity_IsValid(position.activity()) &&
         position.activity() != v1::ACTIVITY_UNSPECIFIED &&
         ToDuration(position.time()) >= absl::ZeroDuration();
}

}  // namespace

std::string OperationText(v1::Operation operation) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(v1::Operation_Name(operation)), {{"_", " "}});
}

void RankPositions::Record(int rank, const v1::Position& position, absl::Time now) {
  if (rank < 0 || rank >= static_cast<int>(places_.size())) return;
  places_[rank].heard = now;
  if (!MakesSense(position, units_)) return;
  Place& place = places_[rank];
  if (place.said && position.activity() == v1::REJOINING) return;
  place.said = true;
  place.position = position;
  place.since = now - ToDuration(position.time());
  if (position.what().size() > kLongestWhat) place.position.mutable_what()->resize(kLongestWhat);
}

bool RankPositions::Silent(const Place& place, absl::Time now) const {
  return now - place.heard > silent_after_;
}

bool RankPositions::IsBehind(const Place& place, const Place& front, absl::Time now) const {
  if (!place.said) return false;
  return Silent(place, now) || place.position.sequence() < front.position.sequence();
}

std::string RankPositions::Describe(int rank, UnitNames names, absl::Time now) const {
  if (rank < 0 || rank >= static_cast<int>(places_.size()) || !places_[rank].said) return "";
  const Place& place = places_[rank];
  std::string text = Doing(place.position, names);
  if (place.position.step() > 0) absl::StrAppend(&text, " in step ", place.position.step());
  absl::StrAppend(&text, " for ", Seconds(now - place.since));
  if (place.position.sequence() > 0)
    absl::StrAppend(&text, ", operation ", place.position.sequence());
  if (Silent(place, now)) absl::StrAppend(&text, ", not heard of for ", Seconds(now - place.heard));
  return text;
}

std::vector<std::string> RankPositions::DescribeAll(int limit, UnitNames names,
                                                    absl::Time now) const {
  std::vector<std::string> all;
  for (int rank = 0; rank < std::min(limit, static_cast<int>(places_.size())); ++rank) {
    const std::string text = Describe(rank, names, now);
    all.push_back(absl::StrCat("rank ", rank, ": ", text.empty() ? "has not said" : text));
  }
  return all;
}

std::optional<RankPositions::Stuck> RankPositions::FindStuck(const std::set<int>& blamed,
                                                             UnitNames names,
                                                             absl::Time now) const {
  const Place* front = nullptr;
  const int count = static_cast<int>(places_.size());
  const auto waits = [&](int rank) {
    const Place& place = places_[rank];
    return place.said && place.position.activity() == v1::WAITING && blamed.count(rank) == 0 &&
           !Silent(place, now);
  };
  for (int rank = 0; rank < count; ++rank) {
    if (!waits(rank)) continue;
    if (front == nullptr || places_[rank].position.sequence() > front->position.sequence())
      front = &places_[rank];
  }
  if (front == nullptr) return std::nullopt;
  Stuck stuck;
  stuck.unit = front->position.unit();
  stuck.operation = front->position.operation();
  std::vector<int> waiting;
  absl::Time since = front->since;
  for (int rank = 0; rank < count; ++rank) {
    const bool there =
        waits(rank) && places_[rank].position.sequence() == front->position.sequence();
    if (there) {
      waiting.push_back(rank);
      since = std::min(since, places_[rank].since);
    } else if (blamed.count(rank) != 0 || (!waits(rank) && IsBehind(places_[rank], *front, now))) {
      stuck.ranks.push_back(rank);
    }
  }
  std::vector<std::string> absent;
  for (const int rank : stuck.ranks) {
    if (absent.size() == kDescribed) break;
    const std::string text = Describe(rank, names, now);
    absent.push_back(
        absl::StrCat("rank ", rank, text.empty() ? " has not said where it is" : " ", text));
  }
  if (stuck.ranks.size() > kDescribed)
    absent.push_back(absl::StrCat(stuck.ranks.size() - kDescribed, " more do not come either"));
  if (absent.empty()) return std::nullopt;
  const std::string place = WhereText(front->position, names);
  stuck.sentence =
      absl::StrCat(absl::StrJoin(absent, "; "), "; meanwhile ", RankList(waiting),
                   waiting.size() == 1 ? " has waited " : " have waited ", Seconds(now - since),
                   " in ", place.empty() ? "a meeting of all ranks" : place);
  if (front->position.sequence() > 0)
    absl::StrAppend(&stuck.sentence, " (operation ", front->position.sequence(), ")");
  return stuck;
}

}  // namespace tessera
