#include "worker/ignored_parameters.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/session_impl.h"
#include "worker/world_sums.h"

namespace tessera {
namespace {

struct Said {
  int64_t numel = 0;
  int64_t dtype = 0;
};

absl::string_view Bytes(const Said& said) {
  return {reinterpret_cast<const char*>(&said), sizeof(said)};
}

absl::Status Average(SessionImpl& impl, const FlatTensor& gradients) {
  TESSERA_ASSIGN_OR_RETURN(const int slot, impl.executor().FreeGradientSlot());
  const SessionParts& parts = impl.parts();
  const Said own = {gradients.numel, gradients.dtype};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           impl.Meet("AllReduceGradients", Bytes(own)));
  for (size_t i = 0; i < all.size(); ++i) {
    Said other;
    std::memcpy(&other, all[i].data(), sizeof(other));
    if (other.numel == own.numel && other.dtype == own.dtype) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("AllReduceGradients of ", own.numel, " x ", DTypeName(gradients.dtype),
                     " on rank ", parts.assignment.rank(), " and ", other.numel, " x ",
                     DTypeName(static_cast<DType>(other.dtype)), " on rank ", i,
                     "; give the same on every rank"));
  }
  const int world_size = parts.assignment.world_size();
  WorldSums sums(parts.collectives.get(), {parts.assignment.rank(), world_size}, /*unit=*/0, slot,
                 parts.layout.gradient_slots(slot).bytes());
  const double factor = parts.spec.mixed_precision().divide_factor();
  return sums.AllReduce(gradients, factor != 0 ? factor : world_size);
}

}  // namespace

absl::Status AllReduceGradients(Session& session, const FlatTensor& gradients) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckUsable());
  if (!IsTrainable(gradients.dtype)) {
    return impl.Keep(absl::InvalidArgumentError(
        absl::StrCat("AllReduceGradients of ", DTypeName(gradients.dtype),
                     "; give float64, float32, float16 or bfloat16")));
  }
  TESSERA_RETURN_IF_ERROR(impl.Keep(Average(impl, gradients)));
  if (impl.in_step()) impl.CountUnmanaged(gradients);
  return absl::OkStatus();
}

absl::Status CheckEqualOnAllRanks(Session& session, absl::string_view what,
                                  absl::string_view bytes) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckUsable());
  const uint64_t own = HashBytes(bytes);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      impl.Meet(absl::StrCat("the comparison of ", what),
                absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own))));
  for (size_t i = 0; i < all.size(); ++i) {
    uint64_t other;
    std::memcpy(&other, all[i].data(), sizeof(other));
    if (other == own) continue;
    const SessionParts& parts = impl.parts();
    const int rank = static_cast<int>(i);
    return impl.Keep(
        BlameRank(absl::FailedPreconditionError(absl::StrCat(
                      what, " differ between rank ", parts.assignment.rank(), " and rank ", rank,
                      "; make them equal on every rank, from one seed or one file")),
                  rank));
  }
  return absl::OkStatus();
}

}  // namespace tessera
