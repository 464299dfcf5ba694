// Where the slots of a ShmCollectives lie, and what a rank does with its own alone.
#include <cstring>
#include <utility>

#include "worker/collectives/shm_collectives.h"

namespace tessera {

void* ShmCollectives::Unsharded(int slot) {
  return options_.unsharded + options_.layout.unsharded_slots(slot).offset_bytes();
}

void* ShmCollectives::Gradient(int gradient_slot) {
  return const_cast<char*>(GradientOf(sync_.index(), gradient_slot));
}

const char* ShmCollectives::GradientOf(int local_rank, int gradient_slot) const {
  return options_.gradients + local_rank * options_.layout.gradient_stride_bytes() +
         options_.layout.gradient_slots(gradient_slot).offset_bytes();
}

void* ShmCollectives::Accumulated(int accumulation_slot) {
  return const_cast<char*>(AccumulatedOf(sync_.index(), accumulation_slot));
}

const char* ShmCollectives::AccumulatedOf(int local_rank, int accumulation_slot) const {
  return options_.gradients + local_rank * options_.layout.gradient_stride_bytes() +
         options_.layout.accumulation_slots(accumulation_slot).offset_bytes();
}

char* ShmCollectives::ReshardSlot(int reshard_slot) const {
  return options_.gradients + sync_.index() * options_.layout.gradient_stride_bytes() +
         options_.layout.reshard_slots(reshard_slot).offset_bytes();
}

std::pair<int, int> ShmCollectives::UsersOf(int slot) const {
  if (slot >= options_.sync.unsharded_slots) return {0, sync_.size()};
  return {group_start_, group_start_ + group_size()};
}

absl::Status ShmCollectives::ReleaseGradient(int gradient_slot) {
  const int slot = sync_.gradient_slot(gradient_slot);
  sync_.Announce(Own(slot).left, tenancy_[slot]);
  return absl::OkStatus();
}

void ShmCollectives::Reshard(int slot, int reshard_slot, int group, int64_t bytes) {
  const int64_t part = bytes / group;
  std::memcpy(ReshardSlot(reshard_slot),
              static_cast<char*>(Unsharded(slot)) + options_.group.index % group * part, part);
}

absl::Status ShmCollectives::ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                                          Stream* /*stream*/) {
  std::memset(static_cast<char*>(Gradient(gradient_slot)) + offset_bytes, 0, bytes);
  return absl::OkStatus();
}

}  // namespace tessera
