// A job's agents and ranks, simulated in one process over real connections, as many as asked for:
// what `tessera bench control` loads a coordinator with. No process is started and no memory
// mapped; a rank lists the units of the whole plan, says that it is ready and then sends what a
// rank sends.
//
//   SimulatedMembers members({.address = address, .job = "bench", .workers = 1000, ...});
//   TESSERA_ASSIGN_OR_RETURN(const absl::Duration formed, members.Form(deadline));
//   members.BeginSteady();                      heartbeats and reports until Stop
//   members.Stop();
//
// One connection carries the streams of many members: they are dealt out in turn.
//
// Thread-safety: one thread calls.
#ifndef TESSERA_CLIENT_SIMULATED_MEMBERS_CLIENT_H_
#define TESSERA_CLIENT_SIMULATED_MEMBERS_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera {

class SimulatedMembers {
 public:
  struct Options {
    std::string address;  // HOST:PORT
    std::string job;
    int workers = 0;
    int local_workers = 0;  // of each host; divides `workers`
    int connections = 0;
    int units = 0;  // that each rank must have listed
    absl::Duration heartbeat = absl::Seconds(1);
    // A step's length: each rank reports after each, with a sample of each unit and operation.
    absl::Duration step = absl::Seconds(10);
  };

  // What BeginSteady has sent since the last call of TakeSent.
  struct Sent {
    int64_t heartbeats = 0;
    int64_t reports = 0;
  };

  explicit SimulatedMembers(Options options);
  // Stops.
  ~SimulatedMembers();
  SimulatedMembers(const SimulatedMembers&) = delete;
  SimulatedMembers& operator=(const SimulatedMembers&) = delete;

  // From the first join until the last rank was told to start its first step; connecting counts.
  // DEADLINE_EXCEEDED: says how far they came. Else what the first stream or call that failed says.
  absl::StatusOr<absl::Duration> Form(absl::Time deadline);

  // Each member sends a heartbeat a period, each rank a report a step, spread evenly.
  void BeginSteady();
  Sent TakeSent();
  // What the first stream or call that failed said.
  absl::Status Health();

  // The wall time of a GetPlan on a connection of its own.
  absl::StatusOr<absl::Duration> TimeGetPlan();

  // Ends the streams and waits for them. Idempotent.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SIMULATED_MEMBERS_CLIENT_H_
