#include "worker/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// What the child knows its socket as: the first descriptor after the standard ones.
constexpr int kChildSocket = 3;
constexpr char kSocketVariable[] = "TESSERA_AGENT_FD=";

// Pointers into strings, as exec wants them.
std::vector<char*> NullTerminated(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, kSocketVariable)) variables.emplace_back(*variable);
  }
  variables.push_back(absl::StrCat(kSocketVariable, kChildSocket));
  return variables;
}

// posix_spawn with what a worker is to have. 0, or errno.
int SpawnWith(int socket, const std::vector<std::string>& argv, pid_t& pid) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, socket, kChildSocket);
  posix_spawn_file_actions_addclosefrom_np(&files, kChildSocket + 1);

  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  const std::vector<std::string> environment = ChildEnvironment();
  const int error = posix_spawn(&pid, argv[0].c_str(), &files, &attributes,
                                NullTerminated(argv).data(), NullTerminated(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (signal != 0) {
    return absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")");
  }
  return absl::StrCat("exited with code ", code);
}

absl::StatusOr<WorkerProcess> WorkerProcess::Spawn(const std::vector<std::string>& argv) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  UniqueFd agent_end(ends[0]), worker_end(ends[1]);
  pid_t pid = -1;
  if (const int error = SpawnWith(worker_end.get(), argv, pid); error != 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));
  }
  // From here on the destructor ends the child.
  WorkerProcess worker(pid, std::move(agent_end));
  worker.pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!worker.pidfd_.valid()) return absl::ErrnoToStatus(errno, "pidfd_open");
  return worker;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// The child is not reaped yet, so its number is its own, and its group's.
void WorkerProcess::Signal(int signal) const {
  if (pid_ >= 0) kill(-pid_, signal);
}

bool WorkerProcess::HasEnded() const {
  pollfd ended = {pidfd_.get(), POLLIN, 0};
  return pid_ < 0 || poll(&ended, 1, 0) > 0;
}

std::optional<ExitStatus> WorkerProcess::TryReap() {
  if (pid_ < 0) return std::nullopt;
  siginfo_t ended = {};
  if (waitid(P_PID, pid_, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != pid_) {
    return std::nullopt;
  }
  // Before it is reaped: until then nobody else can have the group's number.
  Signal(SIGKILL);
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  ExitStatus exit;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  return exit;
}

}  // namespace tessera
