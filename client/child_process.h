// A program started beside this one, which dies with it.
//
//   TESSERA_ASSIGN_OR_RETURN(auto child, ChildProcess::Start({"/usr/bin/env", "true"},
//                                                            ChildProcess::Stdout::kPipe));
//   TESSERA_ASSIGN_OR_RETURN(const std::string line,
//                            child->ReadLine(absl::Now() + absl::Seconds(5), /*interrupt_fd=*/-1));
//   child->Terminate();
//
// The child leads a process group of its own, so that Ctrl-C on a terminal reaches this process
// alone, and is killed by the kernel (PR_SET_PDEATHSIG) when this process ends, however it ends.
// Start from a thread that lives as long as the process: the kernel looks at the thread. stdin is
// /dev/null and stderr is this process's.
//
// Thread-safety: one thread.
#ifndef TESSERA_CLIENT_CHILD_PROCESS_H_
#define TESSERA_CLIENT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace tessera {

class ChildProcess {
 public:
  enum class Stdout { kPipe, kToStderr };

  // `argv[0]` is the program's path. UNAVAILABLE: it cannot be executed, or the kernel is out of
  // processes or descriptors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv,
                                                             Stdout out);
  // Kills what is left of the group.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable once the child has ended, for poll(2).
  int pidfd() const { return pidfd_.get(); }
  // Readable when there is output or its end; -1 without kPipe.
  int stdout_fd() const { return stdout_.get(); }

  bool HasEnded() const;
  // The next line of stdout, without its newline. `interrupt_fd` (-1: none) becoming readable ends
  // the wait: CANCELLED, and it is left unread. UNAVAILABLE: the output ended. DEADLINE_EXCEEDED.
  absl::StatusOr<std::string> ReadLine(absl::Time deadline, int interrupt_fd);

  // Asks the child to end (SIGTERM), without waiting.
  void Terminate();
  // Waits until it has ended, `deadline`, or `interrupt_fd` (-1: none) is readable. True if it has
  // ended.
  bool WaitUntil(absl::Time deadline, int interrupt_fd);
  // Kills what is left of the child's process group (SIGKILL) and reaps the child. Idempotent.
  void KillGroup();

  // "exited with code 3", "was killed by signal 9 (Killed)"; "is running". Valid also after
  // KillGroup.
  std::string Ending() const;
  // Whether it has ended by a signal.
  bool WasKilled() const;

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd, UniqueFd out)
      : pid_(pid), pidfd_(std::move(pidfd)), stdout_(std::move(out)) {}

  const pid_t pid_;
  const UniqueFd pidfd_;
  const UniqueFd stdout_;
  std::string buffered_;  // read from stdout, not given out yet
  bool reaped_ = false;
  int code_ = 0;    // si_code, once reaped
  int status_ = 0;  // si_status, once reaped
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CHILD_PROCESS_H_
