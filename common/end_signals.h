// SIGINT, SIGTERM and SIGHUP as something to poll, so that a program ends its work and its children
// in its own code.
//
//   TESSERA_ASSIGN_OR_RETURN(const EndSignals signals, EndSignals::Block());
//   ... poll signals.fd(); readable: const int number = signals.Take(); ...
//
// Call Block before any other thread starts: threads inherit the mask. Thread-safety: one thread.
#ifndef TESSERA_COMMON_END_SIGNALS_H_
#define TESSERA_COMMON_END_SIGNALS_H_

#include <utility>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace tessera {

class EndSignals {
 public:
  // RESOURCE_EXHAUSTED: the process has no descriptors left.
  static absl::StatusOr<EndSignals> Block();

  // Readable while a signal waits.
  int fd() const { return fd_.get(); }
  // The signal that waits, e.g. SIGINT, or 0 where none does.
  int Take() const;
  // Waits for one and takes it; from then on the next one kills the process at once.
  int WaitForLast() const;

 private:
  explicit EndSignals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_END_SIGNALS_H_
