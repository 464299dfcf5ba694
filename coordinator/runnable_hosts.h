// What a job on several hosts may have that workers cannot do yet.
#ifndef TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_
#define TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_

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

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_RUNNABLE_HOSTS_H_
