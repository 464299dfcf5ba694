// A coordinator and one agent on this machine, for one job: what `tessera run` starts and ends.
//
//   TESSERA_ASSIGN_OR_RETURN(const LocalBinaries binaries, FindLocalBinaries(OwnDirectory()));
//   TESSERA_ASSIGN_OR_RETURN(auto cluster, LocalCluster::Start(binaries, signal_fd));
//   ... create the job at cluster->coordinator_address() ...
//   TESSERA_RETURN_IF_ERROR(cluster->StartAgent(job.name(), /*local_workers=*/2));
//   ... wait for the job's end ...
//   cluster->Stop(absl::Seconds(3), signal_fd);
//
// Owns both processes: none of them, nor the agent's workers, outlives it or this process
// (ChildProcess). Their stderr is this process's.
//
// Thread-safety: one thread, which lives as long as the process.
#ifndef TESSERA_CLIENT_LOCAL_CLUSTER_H_
#define TESSERA_CLIENT_LOCAL_CLUSTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/child_process.h"

namespace tessera {

struct LocalBinaries {
  std::string coordinator;
  std::string worker;
};

// The directory of this process's program.
std::string OwnDirectory();

// The path of another of Tessera's programs: looks for `name` in `directory` (as installed), then
// in `directory`'s neighbour (as Bazel builds it). NOT_FOUND: it is at neither; the message names
// both.
absl::StatusOr<std::string> FindSiblingProgram(const std::string& directory,
                                               const std::string& neighbour,
                                               const std::string& name);

// Looks in `directory` (as installed), then in its neighbours coordinator/ and worker/ (as Bazel
// builds them). NOT_FOUND: one is missing; the message says where it was looked for.
absl::StatusOr<LocalBinaries> FindLocalBinaries(const std::string& directory);

// "127.0.0.1:4020" of "listening 127.0.0.1:4020". INTERNAL: another line.
absl::StatusOr<std::string> ParseListeningLine(absl::string_view line);

class LocalCluster {
 public:
  // Starts the coordinator and waits for the line that says where it listens. UNAVAILABLE: it did
  // not start. DEADLINE_EXCEEDED: it said nothing for 15 seconds. CANCELLED: `interrupt_fd` became
  // readable.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalBinaries binaries,
                                                             int interrupt_fd);

  const std::string& coordinator_address() const { return coordinator_address_; }

  // program: what the agent is to run as each rank; empty: the job's built-in workload.
  // UNAVAILABLE: it did not start.
  absl::Status StartAgent(const std::string& job, int64_t local_workers,
                          const std::vector<std::string>& program = {});

  const ChildProcess& coordinator() const { return *coordinator_; }
  // Null before StartAgent.
  const ChildProcess* agent() const { return agent_.get(); }

  // Gives the agent `patience` to end by itself (its job has ended), then asks both to end (agent
  // first), and kills what is left after another second each. Waits no longer once `interrupt_fd`
  // (-1: none) is readable.
  void Stop(absl::Duration patience, int interrupt_fd);

 private:
  explicit LocalCluster(LocalBinaries binaries) : binaries_(std::move(binaries)) {}

  const LocalBinaries binaries_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::string coordinator_address_;
  std::unique_ptr<ChildProcess> agent_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_LOCAL_CLUSTER_H_
