#include "worker/prefetch_lists.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/session_impl.h"

namespace tessera {

absl::Status SetPrefetch(Session& session, int unit, Phase phase, std::vector<int> ahead) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckIdle("SetPrefetch"));
  if (phase == Phase::kEval) {
    return absl::InvalidArgumentError(
        "SetPrefetch for kEval, which has no order; call Session::Prefetch instead");
  }
  std::vector<int> named = ahead;
  named.push_back(unit);
  const int units = impl.plan().units_size();
  for (const int one : named) {
    if (one >= 0 && one < units) continue;
    return absl::NotFoundError(
        absl::StrCat("SetPrefetch names unit ", one, "; the plan has units 0 to ", units - 1));
  }
  impl.SetPrefetch(unit, phase != Phase::kForward, std::move(ahead));
  return absl::OkStatus();
}

}  // namespace tessera
