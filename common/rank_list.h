// Ranks as people read them.
#ifndef TESSERA_COMMON_RANK_LIST_H_
#define TESSERA_COMMON_RANK_LIST_H_

#include <string>
#include <vector>

namespace tessera {

// "rank 1" or "ranks 0, 2-4"; `ranks` ascend.
std::string RankList(const std::vector<int>& ranks);

}  // namespace tessera

#endif  // TESSERA_COMMON_RANK_LIST_H_
