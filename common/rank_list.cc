#include "common/rank_list.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {

std::string RankList(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    runs.push_back(begin == end ? absl::StrCat(ranks[begin])
                                : absl::StrCat(ranks[begin], "-", ranks[end]));
    begin = end + 1;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

}  // namespace tessera
