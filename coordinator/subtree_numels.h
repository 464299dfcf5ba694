// Sums over the module tree that count what is shared once, in time linear in the model's size.
#ifndef TESSERA_COORDINATOR_SUBTREE_NUMELS_H_
#define TESSERA_COORDINATOR_SUBTREE_NUMELS_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/model_spec.h"

namespace tessera {

// Collects amounts that are at several modules at once, and says for each module how much is at it
// or below it, each amount once.
class SubtreeSum {
 public:
  explicit SubtreeSum(const ModelIndex& index) : index_(index), at_(index.modules().size(), 0) {}

  void Add(int module, int64_t amount) { at_[module] += static_cast<uint64_t>(amount); }
  // At each of `modules`, which may repeat. Where two of them meet it would count twice.
  void AddShared(absl::InlinedVector<int, 4> modules, int64_t amount);
  std::vector<int64_t> Sums() &&;

 private:
  const ModelIndex& index_;
  // Modulo 2^64: what is shared a million times may leave int64 on the way, and no sum does.
  std::vector<uint64_t> at_;
};

// For each module the elements of the parameters used in it or below, each storage once. Those of
// `left_out` (by index in index.parameters()) do not count. What an alias stands for counts at the
// alias.
std::vector<int64_t> SubtreeNumels(const ModelIndex& index, const std::vector<bool>& left_out);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_SUBTREE_NUMELS_H_
