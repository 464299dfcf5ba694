// Jobs: made, changed and ended.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {

absl::StatusOr<JobEntry*> CoordinatorBase::FindLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("there is no job ", name));
  return found->second.get();
}

JobEntry* CoordinatorBase::LiveLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() || found->second->lifecycle.ended() ? nullptr : found->second.get();
}

absl::StatusOr<std::optional<v1::Job>> CoordinatorCore::CheckNewLocked(
    const std::string& name, const std::string& request_id) {
  if (shut_down_) return absl::UnavailableError("the coordinator is shutting down");
  if (const auto known = names_by_request_.find(request_id);
      !request_id.empty() && known != names_by_request_.end()) {
    if (known->second != name) {
      return InvalidField("request_id", absl::StrCat("was used to create job ", known->second,
                                                     "; give each request an id of its own"));
    }
    return jobs_.at(name)->lifecycle.proto();
  }
  if (const JobEntry* live = LiveLocked(name); live != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("job ", name, " is ",
                                                 v1::JobState_Name(live->lifecycle.state()),
                                                 "; cancel it or take another name"));
  }
  if (static_cast<int64_t>(live_.size()) >= options_.max_live_jobs) {
    return LimitExceeded(
        "max_jobs", options_.max_live_jobs,
        absl::StrCat("there are ", live_.size(), " live jobs, cancel some of them first"));
  }
  return std::optional<v1::Job>();
}

namespace {

std::string WhatIsAwaited(const v1::JobSpec& spec) {
  const int64_t workers = spec.mesh().min_workers();
  const int64_t local = RanksOfHost(spec);
  if (local == 0) return absl::StrCat("waits for a host with at least ", workers, " workers");
  return absl::StrCat("waits for ", (workers + local - 1) / local, " hosts with at least ", local,
                      " workers each");
}

}  // namespace

absl::StatusOr<v1::Job> Coordinator::CreateJob(const v1::CreateJobRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, ResolveJobSpec(request.spec()));
  const std::string name = spec.name();
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(auto known, CheckNewLocked(name, request.request_id()));
    if (known.has_value()) return *std::move(known);
  }
  // Planning can take a while and heartbeats must not wait for it, so the lock is not held.
  std::shared_ptr<const PlannedJob> planned;
  if (!spec.model().built()) {
    TESSERA_ASSIGN_OR_RETURN(planned,
                             PlannedJob::Create(spec, static_cast<int>(spec.mesh().max_workers())));
  }
  TESSERA_RETURN_IF_ERROR(planned == nullptr ? CheckRunnable(spec, v1::Plan())
                                             : CheckRunnable(spec, planned->planned()));
  JobLifecycle lifecycle(name, spec.steps(), options_.clock->WallNow());
  if (request.validate_only()) return lifecycle.proto();
  if (planned != nullptr) {
    TESSERA_RETURN_IF_ERROR(lifecycle.Seal());
    TESSERA_RETURN_IF_ERROR(lifecycle.Form());
  }
  lifecycle.SetReason(WhatIsAwaited(spec));

  MutexLock creating(create_mutex_);
  std::unique_ptr<JobEntry> job;
  StateChange change;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(auto known, CheckNewLocked(name, request.request_id()));
    if (known.has_value()) return *std::move(known);
    job = std::make_unique<JobEntry>(std::move(lifecycle), options_.verdict);
    job->id = ++last_job_id_;
    // With the time, so that it differs from those of another coordinator's jobs as well.
    job->run = absl::StrCat(job->id, "-", absl::ToUnixMicros(options_.clock->WallNow()));
    job->events = std::make_shared<EventLog>(job->run, options_.max_events);
    job->request_id = request.request_id();
    job->deadline = members_.now() + ToDuration(spec.timeouts().form());
    job->spec = std::make_shared<const v1::JobSpec>(std::move(spec));
    job->planned = std::move(planned);
    change = CreationLocked(*job);
  }
  TESSERA_RETURN_IF_ERROR(Annotate(
      writer_.WriteWith(change), absl::StrCat("job ", name, " is not created: it cannot be kept")));
  v1::Job created;
  {
    MutexLock lock(mutex_);
    EraseLocked(name);
    if (!job->request_id.empty()) names_by_request_[job->request_id] = name;
    JobEntry& entry = *job;
    live_[job->id] = &entry;
    jobs_[name] = std::move(job);
    ChangedLocked(entry);
    MatchLocked();
    created = entry.lifecycle.proto();
  }
  Flush();
  return created;
}

void CoordinatorCore::EraseLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return;
  StateChange change;
  change.erased_jobs.insert(found->second->id);
  writer_.Add(std::move(change));
  names_by_request_.erase(found->second->request_id);
  members_.Forget(name);
  ended_.erase(std::remove(ended_.begin(), ended_.end(), name), ended_.end());
  jobs_.erase(found);
}

void CoordinatorCore::ChangedLocked(JobEntry& job) {
  v1::WatchJobResponse event;
  *event.mutable_job() = job.lifecycle.proto();
  KeepEventLocked(job, std::move(event));
  KeepJobLocked(job);
  if (job.lifecycle.ended()) job.events->Close();
  LaterLocked([events = job.events] { events->Wake(); });
}

void CoordinatorCore::FailLocked(JobEntry& job, const Blame& blame) {
  if (!job.lifecycle.Fail(blame, options_.clock->WallNow()).ok()) return;
  NoteOutcomeLocked(job, "the job FAILED");
  EndedLocked(job);
}

void CoordinatorCore::CancelLocked(JobEntry& job, absl::StatusCode code,
                                   const std::string& reason) {
  if (job.lifecycle.Cancel(code, reason, options_.clock->WallNow()).ok()) EndedLocked(job);
}

void CoordinatorCore::EndedLocked(JobEntry& job) {
  const std::string name = job.lifecycle.proto().name();
  v1::AttendResponse message;
  message.mutable_end()->set_state(job.lifecycle.state());
  message.mutable_end()->set_reason(job.lifecycle.proto().reason());
  for (const MemberId member : members_.MembersOf(name)) SendLocked(member, message);
  members_.End(name);
  rendezvous_.End(name, job.lifecycle.proto().reason());
  AnswerFetchesLocked();
  ChangedLocked(job);
  live_.erase(job.id);
  ended_.push_back(name);
  while (static_cast<int64_t>(ended_.size()) > options_.max_ended_jobs) {
    EraseLocked(std::string(ended_.front()));
  }
}

absl::StatusOr<v1::GetJobResponse> Coordinator::GetJob(const std::string& name) {
  v1::GetJobResponse response;
  std::shared_ptr<const v1::JobSpec> spec;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
    *response.mutable_job() = job->lifecycle.proto();
    spec = job->spec;
  }
  *response.mutable_spec() = *spec;
  return response;
}

absl::StatusOr<std::shared_ptr<EventLog>> Coordinator::WatchJob(const std::string& name) {
  MutexLock lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
  return job->events;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(const std::string& name, const std::string& reason,
                                               const std::string& request_id) {
  v1::Job cancelled;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(const auto known, AnsweredLocked("cancel", name, request_id));
    if (known.has_value()) {
      cancelled = *known;
    } else {
      TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
      CancelLocked(*job, absl::StatusCode::kCancelled,
                   reason.empty() ? "cancelled on request" : reason);
      cancelled = job->lifecycle.proto();
      KeepAnswerLocked("cancel", request_id, cancelled);
    }
  }
  Flush();
  return Acknowledge(cancelled);
}

absl::StatusOr<v1::Job> Coordinator::DrainJob(const std::string& name,
                                              const std::string& request_id) {
  v1::Job drained;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(const auto known, AnsweredLocked("drain", name, request_id));
    if (known.has_value()) {
      drained = *known;
    } else {
      TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
      TESSERA_RETURN_IF_ERROR(DrainLocked(*job));
      drained = job->lifecycle.proto();
      KeepAnswerLocked("drain", request_id, drained);
    }
  }
  Flush();
  return Acknowledge(drained);
}

absl::Status CoordinatorCore::DrainLocked(JobEntry& job) {
  const std::string& name = job.lifecycle.proto().name();
  if (job.lifecycle.ended() && !job.lifecycle.drained()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " is ", v1::JobState_Name(job.lifecycle.state()),
                     "; only a job that has not ended can be drained"));
  }
  const bool runs = job.lifecycle.state() == v1::RUNNING || job.lifecycle.state() == v1::RECOVERING;
  if (runs && !job.lifecycle.proto().draining()) {
    // One that recovers is drained once it runs again.
    const bool now = job.lifecycle.state() == v1::RUNNING;
    TESSERA_RETURN_IF_ERROR(job.lifecycle.Drain());
    v1::AttendResponse message;
    message.mutable_drain();
    for (const RankMember& rank : members_.FindGeneration(name)->ranks) {
      if (now) SendLocked(rank.id, message);
    }
    ChangedLocked(job);
  } else if (!runs &&
             job.lifecycle.EndDrained("drained before it ran", options_.clock->WallNow()).ok()) {
    EndedLocked(job);
  }
  return absl::OkStatus();
}

}  // namespace tessera
