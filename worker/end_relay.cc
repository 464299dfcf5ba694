#include "worker/end_relay.h"

#include <sys/eventfd.h>

#include <utility>

namespace tessera {

EndRelay::EndRelay(std::function<void(const absl::Status&)> on_end)
    : on_end_(std::move(on_end)), ended_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void EndRelay::End(const absl::Status& status) {
  Collectives* collectives = nullptr;
  {
    MutexLock lock(mutex_);
    status_ = status;
    collectives = collectives_;
  }
  eventfd_write(ended_.get(), 1);
  if (collectives != nullptr) collectives->Interrupt(status);
  if (on_end_) on_end_(status);
}

absl::Status EndRelay::status() const {
  MutexLock lock(mutex_);
  return status_;
}

absl::Status EndRelay::Connect(Collectives* collectives) {
  MutexLock lock(mutex_);
  collectives_ = collectives;
  return status_;
}

}  // namespace tessera
