#include "client/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"

namespace tessera {
namespace {

absl::Status ErrnoError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Runs in the child between fork and exec, where only async-signal-safe calls are allowed: other
// threads of the parent may hold any lock. Writes errno to `failure` where exec fails.
[[noreturn]] void BecomeProgram(char* const* argv, int null, int out, int failure, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before the line above
  dup2(null, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  execv(argv[0], argv);
  const int error = errno;
  if (write(failure, &error, sizeof(error)) < 0) _exit(126);
  _exit(127);
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError("pipe");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(std::vector<std::string> argv,
                                                                  Stdout out) {
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return ErrnoError("/dev/null");
  absl::StatusOr<Pipe> failure = MakePipe();
  if (!failure.ok()) return failure.status();
  absl::StatusOr<Pipe> output = MakePipe();
  if (!output.ok()) return output.status();

  const int child_out = out == Stdout::kPipe ? output->write.get() : STDERR_FILENO;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrnoError("fork");
  if (pid == 0) {
    BecomeProgram(arguments.data(), null.get(), child_out, failure->write.get(), parent);
  }
  setpgid(pid, pid);  // as the child does: whoever comes first
  failure->write.Reset();
  output->write.Reset();
  if (out != Stdout::kPipe) output->read.Reset();

  int error = 0;
  ssize_t got;
  do {
    got = read(failure->read.get(), &error, sizeof(error));  // ends at exec, which closes the pipe
  } while (got < 0 && errno == EINTR);
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (got > 0 || !pidfd.valid()) {
    if (got <= 0) error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::UnavailableError(absl::StrCat(argv[0], ": cannot be started: ", strerror(error)));
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, std::move(pidfd), std::move(output->read)));
}

ChildProcess::~ChildProcess() { KillGroup(); }

bool ChildProcess::HasEnded() const {
  if (reaped_) return true;
  pollfd wait = {pidfd_.get(), POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

absl::StatusOr<std::string> ChildProcess::ReadLine(absl::Time deadline, int interrupt_fd) {
  for (;;) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd waits[2] = {{stdout_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    const int ready = poll(waits, 2, PollTimeout(deadline - absl::Now()));
    if (ready < 0 && errno != EINTR) return ErrnoError("poll");
    if (ready == 0 && absl::Now() >= deadline) {
      return absl::DeadlineExceededError("no line of output in time");
    }
    if (ready <= 0) continue;
    if (waits[1].revents != 0) return absl::CancelledError("interrupted");
    char bytes[4096];
    const ssize_t got = read(stdout_.get(), bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::UnavailableError("the output ended");
    buffered_.append(bytes, static_cast<size_t>(got));
  }
}

void ChildProcess::Terminate() {
  if (!reaped_) kill(pid_, SIGTERM);
}

bool ChildProcess::WaitUntil(absl::Time deadline, int interrupt_fd) {
  while (!HasEnded()) {
    if (absl::Now() >= deadline) return false;
    pollfd waits[2] = {{pidfd_.get(), POLLIN, 0}, {interrupt_fd, POLLIN, 0}};
    poll(waits, 2, PollTimeout(deadline - absl::Now()));
    if (waits[1].revents != 0) return HasEnded();
  }
  return true;
}

void ChildProcess::KillGroup() {
  if (reaped_) return;
  // The child, a zombie at least, keeps the group's number from being used again.
  kill(-pid_, SIGKILL);
  siginfo_t info = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
  }
  code_ = info.si_code;
  status_ = info.si_status;
  reaped_ = true;
}

bool ChildProcess::WasKilled() const { return absl::StartsWith(Ending(), "was killed"); }

std::string ChildProcess::Ending() const {
  int code = code_;
  int status = status_;
  if (!reaped_) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      return "is running";
    }
    code = info.si_code;
    status = info.si_status;
  }
  if (code == CLD_EXITED) return absl::StrCat("exited with code ", status);
  return absl::StrCat("was killed by signal ", status, " (", strsignal(status), ")");
}

}  // namespace tessera
