#include "worker/gradient_norm.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/norm.h"
#include "worker/session_impl.h"
#include "worker/shard_slices.h"

namespace tessera {
namespace {

struct Said {
  double p = 0;
  double term = 0;
};

NormSum OwnTerm(const SessionParts& parts, double p, bool gradients,
                absl::Span<const FlatTensor> unmanaged) {
  NormSum norm(p);
  if (parts.assignment.rank() == 0) {
    for (const FlatTensor& tensor : unmanaged) norm.Add(tensor);
  }
  // The other replicas have the same.
  const bool counts = parts.assignment.replica_index() == 0;
  for (size_t u = 0; counts && u < parts.planned.units.size(); ++u) {
    const v1::Unit& unit = parts.planned.units[u];
    const int index = static_cast<int>(u);
    const ShardSpan shard =
        gradients ? parts.store->Gradients(index) : parts.store->Parameters(index);
    for (const ShardSlice& slice :
         SlicesOf(unit, parts.planned.layouts[u], parts.assignment.shard_index())) {
      if (gradients && !unit.parameters(slice.parameter).requires_grad()) continue;
      norm.Add({shard.data + slice.offset * DTypeBytes(shard.dtype), slice.numel, shard.dtype});
    }
  }
  return norm;
}

absl::StatusOr<double> GlobalNorm(Session& session, const std::string& what, double p,
                                  bool gradients, absl::Span<const FlatTensor> unmanaged) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckIdle(what));
  if (!(p >= 1)) {
    return impl.Keep(
        absl::InvalidArgumentError(absl::StrCat(what, " with p ", p, "; give 1 or more")));
  }
  const SessionParts& parts = impl.parts();
  const Said own = {p, OwnTerm(parts, p, gradients, unmanaged).term()};
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      impl.Meet(what, absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own))));
  NormSum norm(p);
  for (size_t i = 0; i < all.size(); ++i) {
    Said said;
    std::memcpy(&said, all[i].data(), sizeof(said));
    if (said.p != p) {
      return impl.Keep(absl::InvalidArgumentError(absl::StrCat(what, " with p ", p, " on rank ",
                                                               parts.assignment.rank(), " and ",
                                                               said.p, " on rank ", i)));
    }
    norm.AddTerm(said.term);
  }
  return norm.norm();
}

}  // namespace

absl::StatusOr<double> GradientNorm(Session& session, double p,
                                    absl::Span<const FlatTensor> unmanaged) {
  SessionImpl& impl = SessionAccess::Of(session);
  if (impl.step() == 0) {
    return impl.Keep(absl::FailedPreconditionError(
        "GradientNorm before the first step: there are no gradients yet"));
  }
  TESSERA_ASSIGN_OR_RETURN(const double norm,
                           GlobalNorm(session, "GradientNorm", p, /*gradients=*/true, unmanaged));
  return norm / impl.parts().store->LastRecord().loss_scale;
}

absl::StatusOr<double> ParameterNorm(Session& session, double p,
                                     absl::Span<const FlatTensor> unmanaged) {
  return GlobalNorm(session, "ParameterNorm", p, /*gradients=*/false, unmanaged);
}

}  // namespace tessera
