// Jobs, workers, plans and stats: what people look at.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/explain.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"

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

v1::Worker WorkerOf(const Generation& generation, int rank) {
  const RankMember& member = generation.ranks[rank];
  v1::Worker worker;
  worker.set_rank(rank);
  worker.set_host(generation.HostIndexOf(rank));
  worker.set_host_name(generation.HostOf(rank).name);
  worker.set_pid(member.pid);
  worker.set_incarnation(member.incarnation);
  worker.set_state(member.away ? "AWAY" : StateName(member.state));
  return worker;
}

v1::Worker StandbyOf(const HostMember& host, const Recovery& recovery) {
  v1::Worker worker;
  worker.set_rank(-1);
  worker.set_host(-1);
  worker.set_host_name(host.name);
  worker.set_pid(host.pid);
  worker.set_incarnation(host.incarnation);
  worker.set_state("STANDBY");
  worker.set_position(recovery.standby.empty()
                          ? absl::StrCat("offers ", host.local_workers, " workers")
                          : recovery.standby);
  return worker;
}

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
  TESSERA_ASSIGN_OR_RETURN(const JobEntry* job, FindLocked(request.job()));
  v1::ListWorkersResponse response;
  const Generation* generation = members_.FindGeneration(request.job());
  if (generation == nullptr) return response;
  // Behind the ranks the hosts that stand by.
  const int world_size = static_cast<int>(generation->ranks.size());
  const std::vector<MemberId> standby =
      job->lifecycle.ended() ? std::vector<MemberId>() : members_.Waiting(request.job());
  for (; rank < world_size + static_cast<int>(standby.size()); ++rank) {
    if (rank < world_size && !HasProcess(generation->ranks[rank])) continue;
    if (response.workers_size() == limit) {
      response.set_next_page_token(absl::StrCat(rank));
      break;
    }
    if (rank < world_size) {
      *response.add_workers() = WorkerOf(*generation, rank);
      response.mutable_workers()->rbegin()->set_position(
          job->observer.PositionOf(rank, members_.now()));
    } else {
      *response.add_workers() =
          StandbyOf(*members_.FindHost(standby[rank - world_size]), job->recovery);
    }
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
  return StatsLocked(*job);
}

v1::JobStats CoordinatorBase::StatsLocked(const JobEntry& job) const {
  const std::string& name = job.lifecycle.proto().name();
  v1::JobStats stats;
  if (job.last_stats.has_value()) stats = *job.last_stats;
  stats.set_job(name);
  stats.set_state(job.lifecycle.state());
  stats.set_step(job.lifecycle.proto().step());
  if (job.last_stats.has_value()) return stats;
  const Generation* generation = members_.FindGeneration(name);
  const int world_size = generation == nullptr ? 0 : static_cast<int>(generation->ranks.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const RankMember& member = generation->ranks[rank];
    if (!HasProcess(member)) continue;
    v1::RankStats* of_rank = stats.add_ranks();
    of_rank->set_rank(rank);
    of_rank->set_pid(member.pid);
    if (job.planned != nullptr) of_rank->set_forecast_bytes(job.planned->ForecastBytes(rank));
    of_rank->set_measured_bytes(member.measured_bytes);
  }
  if (job.planned == nullptr) return stats;
  const JobPlan& planned = job.planned->planned();
  for (int unit = 0; unit < job.planned->unit_count(); ++unit) {
    const v1::Unit& planned_unit = planned.plan.units(unit);
    const v1::UnitLayout& layout = planned.layout.units(unit);
    v1::UnitStats* of_unit = stats.add_units();
    of_unit->set_fqn(planned_unit.fqn());
    of_unit->set_param_dtype(planned_unit.param_dtype());
    of_unit->set_reduce_dtype(planned_unit.reduce_dtype());
    of_unit->set_sharded_bytes(layout.shard_numel() * DTypeBytes(planned_unit.original_dtype()));
    of_unit->set_unsharded_bytes(layout.padded_numel() * DTypeBytes(planned_unit.param_dtype()));
    if (!job.stats.has_value()) continue;
    for (v1::OperationStats& operation : job.stats->Summarise(unit)) {
      *of_unit->add_operations() = std::move(operation);
    }
  }
  return stats;
}

}  // namespace tessera
