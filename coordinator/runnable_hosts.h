// Which hosts a job runs on, and what a job on several may have that workers cannot do yet.
#ifndef TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_
#define TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_

#include <string>

#include "absl/status/status.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// Ranks that each host of the job has; 0: all are on one host.
int RanksOfHost(const v1::JobSpec& resolved);

// Workers of several hosts compute on CPUs, and every host has as many of them. INVALID_ARGUMENT:
// the job asks for more; Field(status) is the setting that asks.
absl::Status CheckHostsRunnable(const v1::JobSpec& resolved);

// Between hosts gradients are summed and nothing else: a shard group lies within one host.
// INVALID_ARGUMENT: one does not.
absl::Status CheckGroupsRunnable(const v1::Layout& layout);

// Whether a host that runs `program` (see JoinHost) is what the job's workload asks for.
// FAILED_PRECONDITION (WRONG_PROGRAM): it is not; says what would be.
absl::Status CheckProgram(const v1::JobSpec& resolved, const std::string& program);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_
