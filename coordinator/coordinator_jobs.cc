// Jobs, plans and stats: what operators ask for.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/explain.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

constexpr int kMaxWorkersPage = 1000;
constexpr int kMaxJobsPage = 1000;
constexpr int kJobsPage = 100;

std::string StateName(RankMember::State state) {
  switch (state) {
    case RankMember::State::kJoined:
      return "JOINED";
    case RankMember::State::kReady:
      return "READY";
    default:
      return "GONE";
  }
}

// A rank that has joined at some time.
bool HasProcess(const RankMember& rank) { return rank.state != RankMember::State::kMissing; }

// FAILED_PRECONDITION (PLAN_NOT_SEALED): there is none yet.
absl::StatusOr<std::shared_ptr<const PlannedJob>> PlannedOf(const JobEntry& job) {
  if (job.planned != nullptr) return job.planned;
  return WithReason(
      absl::FailedPreconditionError(absl::StrCat("job ", job.lifecycle.proto().name(), " is ",
                                                 v1::JobState_Name(job.lifecycle.state()),
                                                 " and has no plan: its ranks did not finish "
                                                 "building the model")),
      "PLAN_NOT_SEALED");
}

}  // namespace

absl::StatusOr<Coordinator::JobEntry*> Coordinator::FindLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("there is no job ", name));
  return found->second.get();
}

Coordinator::JobEntry* Coordinator::LiveLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() || found->second->lifecycle.ended() ? nullptr : found->second.get();
}

absl::StatusOr<std::optional<v1::Job>> Coordinator::CheckNewLocked(const std::string& name,
                                                                   const std::string& request_id) {
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

  v1::Job created;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(auto known, CheckNewLocked(name, request.request_id()));
    if (known.has_value()) return *std::move(known);
    EraseLocked(name);
    auto job = std::make_unique<JobEntry>(std::move(lifecycle), options_.verdict);
    job->id = ++last_job_id_;
    // With the time, so that it differs from those of another coordinator's jobs as well.
    job->events = std::make_shared<EventLog>(
        absl::StrCat(job->id, "-", absl::ToUnixMicros(options_.clock->WallNow())),
        options_.max_events);
    job->request_id = request.request_id();
    job->deadline = members_.now() + ToDuration(spec.timeouts().form());
    job->spec = std::make_shared<const v1::JobSpec>(std::move(spec));
    job->planned = std::move(planned);
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

void Coordinator::EraseLocked(const std::string& name) {
  const auto found = jobs_.find(name);
  if (found == jobs_.end()) return;
  names_by_request_.erase(found->second->request_id);
  members_.Forget(name);
  ended_.erase(std::remove(ended_.begin(), ended_.end(), name), ended_.end());
  jobs_.erase(found);
}

void Coordinator::ChangedLocked(JobEntry& job) {
  v1::WatchJobResponse event;
  *event.mutable_job() = job.lifecycle.proto();
  job.events->Append(std::move(event));
  if (job.lifecycle.ended()) job.events->Close();
  LaterLocked([events = job.events] { events->Wake(); });
}

void Coordinator::FailLocked(JobEntry& job, const Blame& blame) {
  if (job.lifecycle.Fail(blame, options_.clock->WallNow()).ok()) EndedLocked(job);
}

void Coordinator::CancelLocked(JobEntry& job, absl::StatusCode code, const std::string& reason) {
  if (job.lifecycle.Cancel(code, reason, options_.clock->WallNow()).ok()) EndedLocked(job);
}

void Coordinator::EndedLocked(JobEntry& job) {
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

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(const v1::ListJobsRequest& request) {
  if (request.page_size() < 0) {
    return InvalidField("page_size", "is negative; give 0 for as many jobs as fit");
  }
  // A token is the age of the last job on its page: what comes later is older, whatever is new.
  int64_t below = std::numeric_limits<int64_t>::max();
  const bool first = request.page_token().empty();
  MutexLock lock(mutex_);
  if (!first && (!absl::SimpleAtoi(request.page_token(), &below) || below < 1 ||
                 below > last_job_id_ || absl::StrCat(below) != request.page_token())) {
    return InvalidField("page_token", "does not come from a page; start again with an empty one");
  }
  const size_t limit =
      request.page_size() == 0 ? kJobsPage : std::min(request.page_size(), kMaxJobsPage);
  std::vector<const JobEntry*> jobs;
  for (const auto& [name, job] : jobs_) {
    if (job->id < below) jobs.push_back(job.get());
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const JobEntry* a, const JobEntry* b) { return a->id > b->id; });
  v1::ListJobsResponse response;
  SetTimestamp(options_.clock->WallNow(), response.mutable_read_time());
  for (size_t i = 0; i < std::min(limit, jobs.size()); ++i) {
    *response.add_jobs() = jobs[i]->lifecycle.proto();
  }
  if (jobs.size() > limit) response.set_next_page_token(absl::StrCat(jobs[limit - 1]->id));
  return response;
}

absl::StatusOr<std::shared_ptr<EventLog>> Coordinator::WatchJob(const std::string& name) {
  MutexLock lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
  return job->events;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(const std::string& name, const std::string& reason) {
  v1::Job cancelled;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
    CancelLocked(*job, absl::StatusCode::kCancelled,
                 reason.empty() ? "cancelled on request" : reason);
    cancelled = job->lifecycle.proto();
  }
  Flush();
  return cancelled;
}

absl::StatusOr<v1::Job> Coordinator::DrainJob(const std::string& name) {
  v1::Job drained;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
    if (job->lifecycle.ended() && !job->lifecycle.drained()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", name, " is ", v1::JobState_Name(job->lifecycle.state()),
                       "; only a job that has not ended can be drained"));
    }
    if (job->lifecycle.state() == v1::RUNNING && !job->lifecycle.proto().draining()) {
      TESSERA_RETURN_IF_ERROR(job->lifecycle.Drain());
      v1::AttendResponse message;
      message.mutable_drain();
      for (const RankMember& rank : members_.FindGeneration(name)->ranks) {
        SendLocked(rank.id, message);
      }
      ChangedLocked(*job);
    } else if (job->lifecycle.state() != v1::RUNNING &&
               job->lifecycle.EndDrained("drained before it ran", options_.clock->WallNow()).ok()) {
      EndedLocked(*job);
    }
    drained = job->lifecycle.proto();
  }
  Flush();
  return drained;
}

absl::StatusOr<v1::ListWorkersResponse> Coordinator::ListWorkers(
    const v1::ListWorkersRequest& request) {
  if (request.page_size() < 0) {
    return InvalidField("page_size", "is negative; give 0 for as many workers as fit");
  }
  int rank = 0;
  if (!request.page_token().empty() &&
      (!absl::SimpleAtoi(request.page_token(), &rank) || rank <= 0)) {
    return InvalidField("page_token", "does not come from a page; start again with an empty one");
  }
  const int limit =
      request.page_size() == 0 ? kMaxWorkersPage : std::min(request.page_size(), kMaxWorkersPage);
  MutexLock lock(mutex_);
  TESSERA_RETURN_IF_ERROR(FindLocked(request.job()).status());
  v1::ListWorkersResponse response;
  const Generation* generation = members_.FindGeneration(request.job());
  if (generation == nullptr) return response;
  for (; rank < static_cast<int>(generation->ranks.size()); ++rank) {
    const RankMember& member = generation->ranks[rank];
    if (!HasProcess(member)) continue;
    if (response.workers_size() == limit) {
      response.set_next_page_token(absl::StrCat(rank));
      break;
    }
    v1::Worker* worker = response.add_workers();
    worker->set_rank(rank);
    worker->set_host(generation->HostIndexOf(rank));
    worker->set_host_name(generation->HostOf(rank).name);
    worker->set_pid(member.pid);
    worker->set_incarnation(member.incarnation);
    worker->set_state(StateName(member.state));
  }
  return response;
}

absl::StatusOr<v1::CreatePlanResponse> Coordinator::CreatePlan(
    const v1::CreatePlanRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec spec, ResolveJobSpec(request.spec()));
  if (request.world_size() < 0) {
    return InvalidField("world_size", "is negative; give 0 for mesh.max_workers");
  }
  const int world_size = request.world_size() == 0 ? static_cast<int>(spec.mesh().max_workers())
                                                   : request.world_size();
  TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(spec, world_size));
  v1::CreatePlanResponse response;
  *response.mutable_plan() = std::move(planned.plan);
  *response.mutable_layout() = std::move(planned.layout);
  *response.mutable_forecast() = std::move(planned.forecast);
  return response;
}

absl::StatusOr<v1::ExplainModuleResponse> Coordinator::ExplainModule(
    const v1::ExplainModuleRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec spec, ResolveJobSpec(request.spec()));
  return tessera::ExplainModule(spec, request.fqn());
}

absl::StatusOr<v1::GetPlanResponse> Coordinator::GetPlan(const std::string& name) {
  std::shared_ptr<const PlannedJob> planned;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
    TESSERA_ASSIGN_OR_RETURN(planned, PlannedOf(*job));
  }
  return planned->Header();
}

absl::StatusOr<v1::ListPlanUnitsResponse> Coordinator::ListPlanUnits(
    const v1::ListPlanUnitsRequest& request) {
  std::shared_ptr<const PlannedJob> planned;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_ASSIGN_OR_RETURN(planned, PlannedOf(*job));
  }
  return planned->Page(request.page_size(), request.page_token());
}

absl::StatusOr<v1::JobStats> Coordinator::GetStats(const std::string& name) {
  MutexLock lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(name));
  v1::JobStats stats;
  stats.set_job(name);
  stats.set_state(job->lifecycle.state());
  stats.set_step(job->lifecycle.proto().step());
  const Generation* generation = members_.FindGeneration(name);
  const int world_size = generation == nullptr ? 0 : static_cast<int>(generation->ranks.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const RankMember& member = generation->ranks[rank];
    if (!HasProcess(member)) continue;
    v1::RankStats* of_rank = stats.add_ranks();
    of_rank->set_rank(rank);
    of_rank->set_pid(member.pid);
    if (job->planned != nullptr) of_rank->set_forecast_bytes(job->planned->ForecastBytes(rank));
    of_rank->set_measured_bytes(member.measured_bytes);
  }
  if (job->planned == nullptr) return stats;
  const JobPlan& planned = job->planned->planned();
  for (int unit = 0; unit < job->planned->unit_count(); ++unit) {
    const v1::Unit& planned_unit = planned.plan.units(unit);
    const v1::UnitLayout& layout = planned.layout.units(unit);
    v1::UnitStats* of_unit = stats.add_units();
    of_unit->set_fqn(planned_unit.fqn());
    of_unit->set_param_dtype(planned_unit.param_dtype());
    of_unit->set_reduce_dtype(planned_unit.reduce_dtype());
    of_unit->set_sharded_bytes(layout.shard_numel() * DTypeBytes(planned_unit.original_dtype()));
    of_unit->set_unsharded_bytes(layout.padded_numel() * DTypeBytes(planned_unit.param_dtype()));
    if (!job->stats.has_value()) continue;
    for (v1::OperationStats& operation : job->stats->Summarise(unit)) {
      *of_unit->add_operations() = std::move(operation);
    }
  }
  return stats;
}

}  // namespace tessera
