#include "coordinator/runnable_hosts.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "coordinator/mesh.h"

namespace tessera {

int RanksOfHost(const v1::JobSpec& resolved) {
  const v1::MeshSpec& mesh = resolved.mesh();
  return mesh.local_world_size() < mesh.max_workers() ? static_cast<int>(mesh.local_world_size())
                                                      : 0;
}

absl::Status CheckHostsRunnable(const v1::JobSpec& resolved) {
  const int64_t local = RanksOfHost(resolved);
  if (local == 0) return absl::OkStatus();
  if (resolved.device() == "cuda") {
    return InvalidField("mesh.local_world_size",
                        absl::StrCat("is ", local,
                                     ", for several hosts, and the device is cuda: GPUs of several "
                                     "hosts do not run a job yet; give 0 or the device cpu"));
  }
  const v1::MeshSpec& mesh = resolved.mesh();
  if (mesh.max_workers() / local * local >= mesh.min_workers()) return absl::OkStatus();
  return InvalidField("mesh.local_world_size",
                      absl::StrCat("is ", local, ", and no number of workers from ",
                                   mesh.min_workers(), " to ", mesh.max_workers(),
                                   " gives every host as many; hosts with fewer can be "
                                   "planned, but not run yet"));
}

absl::Status CheckGroupsRunnable(const v1::Layout& layout) {
  const Mesh mesh = MeshOf(layout);
  if (mesh.Hosts() == 1 || mesh.GroupsShareMemory()) return absl::OkStatus();
  return InvalidField(
      "mesh.local_world_size",
      absl::StrCat("is ", mesh.local_world_size, ", and ", mesh.world_size, " ranks with ",
                   mesh.replica_count, mesh.replica_count == 1 ? " replica" : " replicas",
                   " have shard groups of ", mesh.shard_count,
                   " over several hosts, which can be planned, but not run yet; give "
                   "mesh.replicas ",
                   mesh.Hosts(), " or the strategy hybrid_shard, so that each host has a copy"));
}

absl::Status CheckProgram(const v1::JobSpec& resolved, const std::string& program) {
  const bool attached = resolved.workload() == "attached";
  if (attached != program.empty()) return absl::OkStatus();
  const std::string& name = resolved.name();
  return WithReason(
      absl::FailedPreconditionError(
          attached ? absl::StrCat("job ", name,
                                  " has the workload attached, which is a program of "
                                  "yours; start its host with `tessera-worker --job=",
                                  name, " -- PROGRAM ARGS`")
                   : absl::StrCat("job ", name, " has the built-in workload ", resolved.workload(),
                                  " and not the program ", program,
                                  "; start its host without "
                                  "`-- PROGRAM`, or give the job the workload attached")),
      "WRONG_PROGRAM");
}

}  // namespace tessera
