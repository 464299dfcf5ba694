// What a history is: which hosts there are, which jobs people ask for, and what goes wrong when.
// All of it is drawn from one seed.
#ifndef TESSERA_TESTS_SIMULATION_PLAN_H_
#define TESSERA_TESTS_SIMULATION_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tessera/v1/job.pb.h"
#include "tests/simulation/random.h"

namespace tessera::simulation {

struct PlannedHost {
  std::string name;
  int local_workers = 0;
  std::string job;  // that its first agent is bound to
  absl::Duration start;
};

struct PlannedJobRequest {
  v1::JobSpec spec;
  absl::Duration create;
  // After it was created.
  std::optional<absl::Duration> cancel;
  std::optional<absl::Duration> drain;
  bool asks_twice = false;  // each request is repeated once it was answered
};

enum class FaultKind {
  kKillRank,
  kKillAgent,
  kBreakStream,
  kCutOff,
  kPauseCoordinator,
  kKillCoordinator,
  kFreezeRank,
  kFreezeAgent,
  kStickRank,
  kRankError,
  kDiskFull,
};

struct PlannedFault {
  FaultKind kind;
  absl::Duration at;
  absl::Duration lasts;
  // Which of the hosts, and which of its ranks; taken by remainder.
  int64_t host = 0;
  int64_t rank = 0;
};

struct Plan {
  std::vector<PlannedHost> hosts;
  std::vector<PlannedJobRequest> jobs;
  std::vector<PlannedFault> faults;
  absl::Duration faults_end;
  int64_t lost_calls_percent = 0;
};

struct PlanOptions {
  bool recovery = false;  // jobs may recover
  bool restarts = false;  // the coordinator may be killed, and its disk be full
  bool faults = true;
};

Plan DrawPlan(Random& random, const PlanOptions& options);

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_PLAN_H_
