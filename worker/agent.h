// The agent of a host: offers its workers to the coordinator, makes the memory that they share,
// starts them and watches them.
//
//   TESSERA_ASSIGN_OR_RETURN(auto agent, Agent::Create({.coordinator = "127.0.0.1:4242",
//                                                       .local_workers = 2,
//                                                       .program = {"/usr/bin/trainer"}}));
//   return agent->Run();
//
// Run lives through one job: join, wait for FormHost, make the memory files, start exactly the
// ranks that it names, give each its handoff (worker/agent_socket.h), report each that ends, and
// finish when the coordinator ends the job. Where the job recovers (EndGeneration of RECOVERING) it
// keeps the files and the processes that live, and waits for the next FormHost. It never leaves a
// child behind, and no end of another process makes it wait without a deadline.
//
// Thread-safety: one thread calls.
#ifndef TESSERA_WORKER_AGENT_H_
#define TESSERA_WORKER_AGENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

class Agent {
 public:
  // What the process should exit with (cli.md's codes).
  enum ExitCode {
    kOk = 0,  // the job succeeded and every worker exited with 0; or stopped before it had a job
    kFailed = 1,        // the job failed or was cancelled, or a worker failed
    kUsage = 2,         // the coordinator found the join to make no sense
    kUnavailable = 3,   // the coordinator cannot be reached, or went away
    kNotFound = 4,      // no such job
    kPrecondition = 5,  // the job is not to be had, e.g. SECOND_HOST, WRONG_PROGRAM
  };

  struct Options {
    // HOST:PORT. Required.
    std::string coordinator = "";
    // Ranks offered: 1 to kMaxLocalWorkers.
    int local_workers = 1;
    // The job it is bound to; "": the pool, for the oldest job that waits.
    std::string job = "";
    // For people; "": this machine's name.
    std::string host_name = "";
    // Where the ranks of the job's other hosts find this one's, without a port; "": the address
    // that this host's packets to the coordinator come from.
    std::string host_address = "";
    // What to run as each rank; the first is a path. Required.
    std::vector<std::string> program = {};
    // The program is somebody's own, for jobs of the workload "attached" and no others; false: it
    // is this build's, for the others.
    bool attached = false;
    // A descriptor that becomes readable when the agent is to stop, e.g. a signalfd; a second time:
    // at once. Each time it is read as one signalfd_siginfo. Borrowed. -1: never.
    int stop_fd = -1;

    // How long to try to reach a coordinator that is not there yet.
    absl::Duration connect_timeout = absl::Seconds(30);
    // How long it may be away after that. Workers compute on meanwhile, and are ended after it.
    absl::Duration coordinator_timeout = absl::Minutes(5);
    // What workers have to end by themselves after the generation's end, or the coordinator's,
    // before they are killed.
    absl::Duration end_grace = absl::Seconds(2);
    // The same after one of them failed while the coordinator says nothing.
    absl::Duration failure_grace = absl::Seconds(4);
    // And after SIGTERM, which a stop sends them.
    absl::Duration stop_grace = absl::Seconds(1);
    // How long to wait for the coordinator's last word once every worker has ended.
    absl::Duration coordinator_grace = absl::Seconds(3);
    // How long to wait for it to take the Leave.
    absl::Duration leave_timeout = absl::Milliseconds(500);
  };

  // INVALID_ARGUMENT: an option makes no sense; names the flag.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // As the coordinator is told.
  const std::string& host_name() const;

  // Returns when the job is over and every worker has ended. Once. Says on stderr what went wrong,
  // naming the rank.
  ExitCode Run();

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_AGENT_H_
