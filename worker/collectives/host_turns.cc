#include "worker/collectives/host_turns.h"

namespace tessera {

void HostTurns::StartSum(int64_t numel, DType dtype, absl::string_view what) {
  started_ = dtype == v1::FLOAT64
                 ? links_->StartSum(
                       absl::MakeSpan(reinterpret_cast<double*>(staging_.data()), numel), what)
                 : links_->StartSum(
                       absl::MakeSpan(reinterpret_cast<float*>(staging_.data()), numel), what);
}

}  // namespace tessera
