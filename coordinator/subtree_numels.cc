#include "coordinator/subtree_numels.h"

#include <algorithm>
#include <utility>

namespace tessera {

// In pre-order two neighbours have the lowest module that holds both; taking the amount away there
// leaves it once in every module that holds any.
void SubtreeSum::AddShared(absl::InlinedVector<int, 4> modules, int64_t amount) {
  std::sort(modules.begin(), modules.end());
  for (size_t i = 0; i < modules.size(); ++i) {
    at_[modules[i]] += static_cast<uint64_t>(amount);
    if (i == 0) continue;
    int meeting = modules[i - 1];
    while (!index_.Encloses(meeting, modules[i])) meeting = index_.modules()[meeting].parent;
    at_[meeting] -= static_cast<uint64_t>(amount);
  }
}

std::vector<int64_t> SubtreeSum::Sums() && {
  // Children come after their parents.
  for (size_t i = at_.size() - 1; i > 0; --i) at_[index_.modules()[i].parent] += at_[i];
  return {at_.begin(), at_.end()};
}

std::vector<int64_t> SubtreeNumels(const ModelIndex& index, const std::vector<bool>& left_out) {
  SubtreeSum sum(index);
  for (size_t i = 0; i < index.parameters().size(); ++i) {
    if (left_out[i]) continue;
    const ModelIndex::Parameter& parameter = index.parameters()[i];
    if (parameter.uses.empty()) {
      sum.Add(parameter.module, parameter.numel);
      continue;
    }
    absl::InlinedVector<int, 4> modules = {parameter.module};
    for (const ModelIndex::Parameter::Use& use : parameter.uses) modules.push_back(use.module);
    sum.AddShared(std::move(modules), parameter.numel);
  }
  return std::move(sum).Sums();
}

}  // namespace tessera
