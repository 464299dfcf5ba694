#include "client/fold_units.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

// A unit, or several that were folded: then a segment of theirs is "0-125".
struct Folded {
  std::vector<std::string> segments;
  std::string kind;
  std::vector<int> units;
  int counting = -1;  // the segment in which this pass folded
  int first = 0;      // the numbers there
  int last = 0;
};

// What a unit must look like to be the next of a group that counts in `segment`.
std::string NextKey(const Folded& item, size_t segment, int number) {
  std::string key = absl::StrCat(item.kind, "\n", segment, "\n", number, "\n");
  for (size_t i = 0; i < item.segments.size(); ++i) {
    absl::StrAppend(&key, i == segment ? "" : item.segments[i], "\n");
  }
  return key;
}

// Whether anything was folded.
bool FoldOnce(std::vector<Folded>* items) {
  std::vector<Folded> groups;
  absl::flat_hash_map<std::string, size_t> waiting;
  const auto join = [&](const Folded& item) {
    for (size_t segment = item.segments.size(); segment-- > 0;) {
      const int number = CountingNumber(item.segments[segment]);
      if (number < 0) continue;
      const auto found = waiting.find(NextKey(item, segment, number));
      if (found == waiting.end()) continue;
      Folded& group = groups[found->second];
      if (group.counting != -1 && group.counting != static_cast<int>(segment)) continue;
      if (group.counting == -1) group.first = CountingNumber(group.segments[segment]);
      group.counting = static_cast<int>(segment);
      group.last = number;
      group.units.insert(group.units.end(), item.units.begin(), item.units.end());
      waiting[NextKey(item, segment, number + 1)] = found->second;
      return true;
    }
    return false;
  };
  for (Folded& item : *items) {
    if (join(item)) continue;
    for (size_t segment = 0; segment < item.segments.size(); ++segment) {
      const int number = CountingNumber(item.segments[segment]);
      if (number >= 0) waiting[NextKey(item, segment, number + 1)] = groups.size();
    }
    groups.push_back(std::move(item));
  }
  const bool folded = groups.size() < items->size();
  for (Folded& group : groups) {
    if (group.counting == -1) continue;
    group.segments[group.counting] = absl::StrCat(group.first, "-", group.last);
    group.counting = -1;
  }
  *items = std::move(groups);
  return folded;
}

}  // namespace

int CountingNumber(absl::string_view text) {
  constexpr size_t kDigits = 9;
  if (text.empty() || text.size() > kDigits || (text[0] == '0' && text.size() > 1)) return -1;
  for (const char c : text) {
    if (!absl::ascii_isdigit(c)) return -1;
  }
  int number = -1;
  return absl::SimpleAtoi(text, &number) ? number : -1;
}

std::vector<UnitGroup> FoldUnits(absl::Span<const std::string> fqns,
                                 absl::Span<const std::string> kinds) {
  std::vector<Folded> items;
  for (size_t i = 0; i < fqns.size(); ++i) {
    Folded item;
    item.segments = absl::StrSplit(fqns[i], '.');
    item.kind = kinds[i];
    item.units = {static_cast<int>(i)};
    items.push_back(std::move(item));
  }
  while (FoldOnce(&items)) {
  }
  std::vector<UnitGroup> groups;
  for (Folded& item : items) {
    std::string name = absl::StrJoin(item.segments, ".");
    if (name.empty()) name = "(root)";
    if (item.units.size() > 1) absl::StrAppend(&name, " x", item.units.size());
    std::sort(item.units.begin(), item.units.end());
    groups.push_back({std::move(name), std::move(item.units)});
  }
  return groups;
}

std::vector<std::string> FoldFqns(absl::Span<const std::string> fqns) {
  std::vector<std::string> names;
  for (UnitGroup& group : FoldUnits(fqns, std::vector<std::string>(fqns.size()))) {
    names.push_back(std::move(group.name));
  }
  return names;
}

}  // namespace tessera
