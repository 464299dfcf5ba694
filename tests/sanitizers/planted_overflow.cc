// Reads the shards of a flat layout.
//
//   planted_overflow none        every shard that there is
//   planted_overflow overflow    one shard more: AddressSanitizer must report it
//   planted_overflow wrap        where a shard far too large would end: UndefinedBehaviorSanitizer
//                                must report it
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "common/flat_layout.h"

namespace tessera {
namespace {

constexpr int64_t kShards = 2;

double Sum(const std::vector<float>& flat, const FlatLayout& layout, int64_t shard) {
  double sum = 0;
  const float* first = flat.data() + shard * layout.shard_numel;
  for (int64_t i = 0; i < layout.shard_numel; ++i) sum += first[i];
  return sum;
}

int Run(const char* fault) {
  const absl::StatusOr<FlatLayout> layout = MakeFlatLayout({100, 24}, {.shard_count = kShards});
  if (!layout.ok()) return 3;
  const std::vector<float> flat(layout->padded_numel, 1.0F);
  const int64_t shards = std::strcmp(fault, "overflow") == 0 ? kShards + 1 : kShards;
  double sum = 0;
  for (int64_t shard = 0; shard < shards; ++shard) sum += Sum(flat, *layout, shard);
  // volatile: known only at run time.
  volatile int64_t numel = std::numeric_limits<int64_t>::max() / 2;
  if (std::strcmp(fault, "wrap") != 0) numel = 0;
  const int64_t end = (kShards + 1) * numel;
  return sum == static_cast<double>(layout->padded_numel) && end >= 0 ? 0 : 3;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: planted_overflow none|overflow|wrap\n");
    return 2;
  }
  return tessera::Run(argv[1]);
}
