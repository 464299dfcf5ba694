#include "common/end_signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tessera {

namespace {

constexpr int kEnds[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t Ends() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kEnds) sigaddset(&set, number);
  return set;
}

}  // namespace

absl::StatusOr<EndSignals> EndSignals::Block() {
  // A shell starts background commands with SIGINT ignored, and an ignored signal is never queued.
  for (const int number : kEnds) signal(number, SIG_DFL);
  const sigset_t set = Ends();
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

int EndSignals::WaitForLast() const {
  int number = 0;
  while (number == 0) {
    pollfd entry = {fd_.get(), POLLIN, 0};
    poll(&entry, 1, -1);
    number = Take();
  }
  const sigset_t set = Ends();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return number;
}

}  // namespace tessera
