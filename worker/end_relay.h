// Passes the end of the generation on to whoever waits, which comes into being only after the
// coordinator may have said it.
//
// Thread-safe.
#ifndef TESSERA_WORKER_END_RELAY_H_
#define TESSERA_WORKER_END_RELAY_H_

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "worker/collectives/collectives.h"

namespace tessera {

class EndRelay {
 public:
  explicit EndRelay(std::function<void(const absl::Status&)> on_end);

  void End(const absl::Status& status);
  // Readable once the end has come.
  int fd() const { return ended_.get(); }
  // What it tells beside the collectives.
  const std::function<void(const absl::Status&)>& on_end() const { return on_end_; }
  // OK: it has not come.
  absl::Status status() const;
  // From now on the end interrupts `collectives`, which outlives the membership client that calls
  // End.
  absl::Status Connect(Collectives* collectives);

 private:
  const std::function<void(const absl::Status&)> on_end_;
  const UniqueFd ended_;
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Collectives* collectives_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_END_RELAY_H_
