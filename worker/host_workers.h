// The workers of one host: their memory files, their processes, and what each was handed, over all
// generations in which the host keeps its ranks.
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
#include <set>
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
    int64_t generation = 0;  // the newest that it was given
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
  // The job goes on in another generation, of the same ranks: a rank whose process has ended, or is
  // in form.restart_ranks (it is killed), is started again over its files; one that lives gets a
  // further handoff with the new control file. Errors: as Start.
  absl::Status Recover(const v1::FormHost& form, const std::vector<std::string>& program);
  // Whether the job goes on when a rank is lost (JobSpec.max_recoveries); the present generation.
  bool recovers() const { return form_.spec().max_recoveries() > 0; }
  int64_t generation() const { return form_.generation(); }
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
    std::unique_ptr<WorkerProcess> process;
    std::deque<HandoffSender> handoffs = {};  // that are not sent yet
    bool ended = false;
    bool told_to_end = false;
  };

  HostWorkers(const v1::FormHost& form, const Host& host) : form_(form), host_(host) {}
  // To the ranks that live; those that had their files before get the control file alone.
  void PrepareHandoffs(const std::set<int>& had_files = {});
  absl::Status SameRanks(const v1::FormHost& form) const;

  v1::FormHost form_;
  const Host host_;
  HostFiles files_;  // none while draft()
  std::vector<Rank> ranks_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_HOST_WORKERS_H_
