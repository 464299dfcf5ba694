// ShmCollectives: gradient buffers for other things than reductions of units.
#include <string>

#include "common/status_macros.h"
#include "worker/collectives/shm_collectives.h"

namespace tessera {

absl::Status ShmCollectives::ExchangeParts(
    int unit, int gradient_slot, int64_t /*bytes*/, absl::FunctionRef<void(char* slot)> write,
    absl::FunctionRef<void(int rank, const char* part)> read) {
  const Group& group = options_.group;
  if (static_cast<int>(group.ranks.size()) * group.replicas != sync_.size()) {
    return absl::UnimplementedError(
        "communication hooks and sums of whole gradients need all ranks on one host");
  }
  TESSERA_ASSIGN_OR_RETURN(const Event acquired, AcquireGradient(unit, gradient_slot, nullptr));
  TESSERA_RETURN_IF_ERROR(acquired.Wait());
  const int slot = sync_.gradient_slot(gradient_slot);
  const uint64_t tenancy = tenancy_[slot];
  const uint64_t tag = Issue(Kind::kParts, unit);
  write(static_cast<char*>(Gradient(gradient_slot)));
  SlotControl& own = sync_.slot(sync_.index(), slot);
  sync_.Announce(own.entered, tenancy);
  TESSERA_RETURN_IF_ERROR(sync_.WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        AdvancePending();
        if (AllReached(slot, /*left=*/false, tenancy)) return true;
        TESSERA_RETURN_IF_ERROR(CheckAgreement(tag));
        return false;
      },
      [&] { return Describe(tag); }, [&] { return Below(slot, /*left=*/false, tenancy); }));
  TESSERA_RETURN_IF_ERROR(CheckAgreement(tag));
  for (int rank = 0; rank < sync_.size(); ++rank) read(rank, GradientOf(rank, gradient_slot));
  sync_.Announce(own.left, tenancy);
  return absl::OkStatus();
}

}  // namespace tessera
