// The workers of one host in one generation: their memory files, their processes, and what each was
// handed.
//
//   TESSERA_ASSIGN_OR_RETURN(auto workers, HostWorkers::Start(form, host, {"/usr/bin/trainer"}));
//   while (!workers->all_ended()) {
//     poll(workers->PollFds());
//     for (const HostWorkers::Ended& ended : workers->Advance()) ...
//   }
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_HOST_WORKERS_H_
#define TESSERA_WORKER_HOST_WORKERS_H_

#include <poll.h>
#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tessera/v1/agent.pb.h"
#include "tessera/v1/membership_service.pb.h"
#include "worker/agent_socket.h"
#include "worker/host_files.h"
#include "worker/worker_process.h"

namespace tessera {

class HostWorkers {
 public:
  // What every worker is told of its host.
  struct Host {
    std::string coordinator;
    std::string name;
    // Where its ranks listen for those of other hosts, without a port. "": there are none.
    std::string address = "";
  };
  struct Ended {
    int rank = 0;
    pid_t pid = 0;
    ExitStatus status;
    // The agent had sent it a signal before.
    bool told_to = false;
  };

  // Makes the files and starts the ranks of `form`. After an error no file and no process is left.
  // RESOURCE_EXHAUSTED: the host has too little memory. INTERNAL: `form` makes no sense. Otherwise
  // as WorkerProcess::Spawn.
  static absl::StatusOr<std::unique_ptr<HostWorkers>> Start(
      const v1::FormHost& form, const Host& host, const std::vector<std::string>& program);
  // Of ranks that were started to build the model (FormHost.draft): makes the files and hands them
  // out. `form` is of the same ranks. Errors: as Start.
  absl::Status Complete(const v1::FormHost& form);
  // Whether Complete is still to come.
  bool draft() const { return form_.draft(); }
  // Kills and reaps what still runs.
  ~HostWorkers() = default;

  // What Advance waits for.
  std::vector<pollfd> PollFds() const;
  // Hands out what the workers' sockets take, and reaps. Never waits. Returns who has ended since
  // the last call: first who was killed, since those who exited may have done so because of it.
  std::vector<Ended> Advance();

  // To each that still runs.
  void Signal(int signal);
  bool all_ended() const;

 private:
  struct Rank {
    int rank;
    std::string incarnation;
    WorkerProcess process;
    std::deque<HandoffSender> handoffs = {};  // that are not sent yet
    bool ended = false;
    bool told_to_end = false;
  };

  HostWorkers(const v1::FormHost& form, const Host& host) : form_(form), host_(host) {}
  void PrepareHandoffs();

  v1::FormHost form_;
  const Host host_;
  HostFiles files_;  // none while draft()
  std::vector<Rank> ranks_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_WORKERS_H_
