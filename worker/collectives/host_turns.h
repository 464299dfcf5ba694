// HostTurns: a rank's operations between hosts, one after the other in the order in which they were
// issued, whatever order their parts on this host become ready in: the other hosts' ranks do the
// same, and there is one staging buffer for sums.
//
//   const int64_t turn = turns.Issue();
//   ...
//   if (!turns.Reached(turn)) return false;              // an earlier one is not done
//   ... fill turns.staging() ...
//   turns.StartSum(numel, v1::FLOAT32, "reduce of unit h.0");
//   ...
//   if (!turns.Passed()) return false;                   // also where it failed: see Check
//   ... read turns.staging() ...
//   turns.End();
//
// Thread-safety: one thread calls; Abort may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_HOST_TURNS_H_
#define TESSERA_WORKER_COLLECTIVES_HOST_TURNS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "worker/collectives/host_links.h"

namespace tessera {

class HostTurns {
 public:
  // `staging` holds the largest sum and outlives the links.
  HostTurns(std::unique_ptr<HostLinks> links, absl::Span<char> staging)
      : links_(std::move(links)), staging_(staging) {}

  // The turn of the operation that is issued now.
  int64_t Issue() { return issued_++; }
  bool Reached(int64_t turn) const { return turn == ended_; }

  // Of the operation whose turn it is. Sums the first `numel` elements of `dtype` (FLOAT32 or
  // FLOAT64) of the staging over the hosts, or gathers every host's payload.
  char* staging() const { return staging_.data(); }
  void StartSum(int64_t numel, DType dtype, absl::string_view what);
  void StartGather(std::string payload, absl::string_view what) {
    started_ = links_->StartGather(std::move(payload), what);
  }
  // Whether it is done.
  bool Passed() const {
    const absl::StatusOr<bool> done = links_->Done(started_);
    return done.ok() && *done;
  }
  // After a gather has passed, in host order.
  std::vector<std::string> TakeGathered() { return links_->TakeGathered(started_); }
  // The next one's turn.
  void End() { ++ended_; }

  // Ends the links: nothing of them runs any more.
  void Close() { links_.reset(); }

  // As HostLinks.
  void SetOnProgress(std::function<void()> on_progress) {
    links_->SetOnProgress(std::move(on_progress));
  }
  absl::Status Check() const { return links_->Check(); }
  void Abort(const absl::Status& status) { links_->Abort(status); }

 private:
  std::unique_ptr<HostLinks> links_;
  const absl::Span<char> staging_;
  int64_t issued_ = 0;
  int64_t ended_ = 0;
  HostLinks::Ticket started_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_HOST_TURNS_H_
