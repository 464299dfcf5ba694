// A child of the agent: one rank's program.
//
//   TESSERA_ASSIGN_OR_RETURN(WorkerProcess worker, WorkerProcess::Spawn({"/usr/bin/trainer"}));
//   poll: worker.pidfd() is readable once it has ended;  worker.socket() takes its handoff
//   std::optional<ExitStatus> ended = worker.TryReap();
//
// The child starts in a process group of its own, so that Ctrl-C on a terminal reaches the agent
// alone; with an empty signal mask and default handlers; with /dev/null as its standard input; and
// with no descriptor but the standard ones and its end of the socket, whose number TESSERA_AGENT_FD
// names. The agent may have threads: nothing of it runs between fork and exec.
//
// What the program starts in its group (a shell's commands, say) gets its signals, and is killed
// when the program has ended: it would go on for nobody.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_WORKER_PROCESS_H_
#define TESSERA_WORKER_WORKER_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace tessera {

// How a process ended: both 0 for a clean exit.
struct ExitStatus {
  int code = 0;
  int signal = 0;

  bool ok() const { return code == 0 && signal == 0; }
  // "exited with code 3", "was killed by signal 9 (Killed)".
  std::string ToString() const;
};

class WorkerProcess {
 public:
  // `argv[0]` is the program's path. NOT_FOUND, PERMISSION_DENIED: it cannot be run.
  // RESOURCE_EXHAUSTED: no process or descriptor is left.
  static absl::StatusOr<WorkerProcess> Spawn(const std::vector<std::string>& argv);

  WorkerProcess(WorkerProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        pidfd_(std::move(other.pidfd_)),
        socket_(std::move(other.socket_)) {}
  WorkerProcess& operator=(WorkerProcess&&) = delete;
  // Kills and reaps a child that still runs.
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  // The agent's end. The child sees its end of file when the agent is dead.
  int socket() const { return socket_.get(); }

  // To the child and what is in its group. Nothing happens where it has ended.
  void Signal(int signal) const;
  // Whether it has, TryReap or not.
  bool HasEnded() const;
  // How it ended; nothing while it runs. Once: the child is then gone, its pidfd and socket stay
  // open.
  std::optional<ExitStatus> TryReap();

 private:
  WorkerProcess(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  pid_t pid_ = -1;  // -1: reaped
  UniqueFd pidfd_;
  UniqueFd socket_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKER_PROCESS_H_
