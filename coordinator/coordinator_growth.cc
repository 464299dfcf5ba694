// Hosts that stand by for a job, and jobs that take them at a step boundary.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

// Whether a host may stand by for the job until it can take it.
bool MayStandBy(const Membership& members, const JobEntry& job, const v1::JoinHost& join) {
  const Generation* generation = members.FindGeneration(join.job());
  if (generation == nullptr || job.draft != nullptr) return false;
  const int local = RanksOfHost(*job.spec);
  const int world_size = job.planned->world_size();
  int waiting = 0, lost = 0;  // those that wait, and are large enough
  for (const MemberId id : members.Waiting(join.job())) {
    if (members.FindHost(id)->local_workers >= (local == 0 ? world_size : local)) ++waiting;
  }
  for (const Generation::Host& host : generation->hosts) lost += host.id == 0 ? 1 : 0;
  if (lost > waiting) return true;
  return join.local_workers() >= local &&
         CanGrow(*job.spec, static_cast<int>(generation->hosts.size()) - lost + waiting,
                 world_size);
}

}  // namespace

absl::Status CoordinatorCore::CheckPlaceLocked(JobEntry& job, const v1::JoinHost& join) {
  const std::vector<MemberId> there = members_.MembersOf(join.job());
  if (there.empty() || (!job.reserved && RanksOfHost(*job.spec) > 0)) return absl::OkStatus();
  if (job.reserved && MayStandBy(members_, job, join)) return absl::OkStatus();
  const Blame refusal = SecondHostLocked(job, there[0], join.host_name());
  // The host that is there is too small, or the job would be forming on it.
  if (!job.reserved) FailLocked(job, refusal);
  return WithReason(absl::Status(refusal.code, refusal.reason), "SECOND_HOST");
}

void CoordinatorCore::GrowLocked(JobEntry& job) {
  const int local = RanksOfHost(*job.spec);
  Recovery& recovery = job.recovery;
  if (local == 0 || job.lifecycle.state() != v1::RUNNING || job.draft != nullptr ||
      job.lifecycle.proto().draining() || recovery.growing || recovery.planning) {
    return;
  }
  const std::string& name = job.lifecycle.proto().name();
  int hosts = static_cast<int>(members_.FindGeneration(name)->hosts.size());
  for (const HostOffer& spare : SparesLocked(job, /*pool=*/false)) {
    if (spare.local_workers >= local) ++hosts;
  }
  const int world_size = ChooseWorldSize(*job.spec, hosts * local);
  if (world_size <= job.planned->world_size()) return;
  if (job.spec->checkpoint().dir().empty() || !job.spec->checkpoint().save()) {
    recovery.standby = absl::StrCat(
        "the job could have ", world_size, " workers, but it has no checkpoint to grow from: ",
        job.spec->checkpoint().save() ? "checkpoint.dir is not set" : "checkpoint.save is false");
    return;
  }
  recovery.planning = true;
  LaterLocked([this, id = job.id, world_size, spec = job.spec] {
    absl::StatusOr<std::shared_ptr<const PlannedJob>> larger =
        PlannedJob::Create(*spec, world_size);
    if (larger.ok()) {
      if (absl::Status status = CheckRunnable(*spec, (*larger)->planned()); !status.ok())
        larger = status;
    }
    MutexLock lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    JobEntry& job = *found->second;
    job.recovery.planning = false;
    if (larger.ok()) return StopToGrowLocked(job, *std::move(larger));
    job.recovery.standby =
        absl::StrCat("the job cannot have ", world_size, " workers: ", larger.status().message());
  });
}

void CoordinatorCore::StopToGrowLocked(JobEntry& job, std::shared_ptr<const PlannedJob> larger) {
  // It was lost, or is to end, meanwhile.
  if (job.lifecycle.state() != v1::RUNNING || job.lifecycle.proto().draining()) return;
  job.recovery.standby.clear();
  job.recovery.growing = true;
  job.recovery.larger = std::move(larger);
  job.lifecycle.SetReason(absl::StrCat("stops after the step that it is in, to go on with ",
                                       job.recovery.larger->world_size(), " workers instead of ",
                                       job.planned->world_size()));
  v1::AttendResponse message;
  message.mutable_drain()->set_resize(true);
  for (const RankMember& rank : members_.FindGeneration(job.lifecycle.proto().name())->ranks) {
    SendLocked(rank.id, message);
  }
  ChangedLocked(job);
}

void CoordinatorCore::ResizeLocked(JobEntry& job) {
  const std::string reason = absl::StrCat("has stopped after step ", job.lifecycle.proto().step(),
                                          " to go on with more workers");
  if (!job.lifecycle.Recover(reason, /*lost=*/false).ok()) return;
  job.recovery.in_place = false;
  job.recovery.not_before = members_.now();
  EndGenerationLocked(job, {});
  job.recovery.growing = true;
  ChangedLocked(job);
  RecoverLocked(job);
}

}  // namespace tessera
