#include "client/signals.h"

#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::StatusOr<EndSignals> EndSignals::Block() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // A shell starts background commands with SIGINT ignored, and an ignored signal is never
    // queued.
    signal(number, SIG_DFL);
    sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return absl::ResourceExhaustedError(absl::StrCat("signalfd: ", strerror(errno)));
  return EndSignals(std::move(fd));
}

int EndSignals::Take() const {
  signalfd_siginfo info = {};
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera
