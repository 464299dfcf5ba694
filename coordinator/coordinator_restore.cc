// Taking up the jobs of an earlier process of the coordinator.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/kept_state.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

using State = RankMember::State;

// What a member has at least to come back: it may be pausing before its next attempt.
constexpr absl::Duration kRejoin = absl::Seconds(5);

absl::Duration RejoinTime(const v1::JobSpec& spec) {
  return std::max(kRejoin, ToDuration(spec.timeouts().lease()));
}

State StateOf(const v1::Worker& worker) {
  if (worker.state() == "READY") return State::kReady;
  return worker.state() == "DONE" ? State::kDone : State::kJoined;
}

// The plan of a job that has one, made anew. FAILED_PRECONDITION: it is another one now. null: the
// job had none.
absl::StatusOr<std::shared_ptr<const PlannedJob>> PlanAgain(const StoredJob& stored) {
  const bool formed = stored.job.world_size() > 0;
  if (stored.layout_fingerprint.empty()) return std::shared_ptr<const PlannedJob>();
  TESSERA_ASSIGN_OR_RETURN(
      auto planned,
      PlannedJob::Create(stored.spec, formed ? stored.job.world_size()
                                             : static_cast<int>(stored.spec.mesh().max_workers())));
  const v1::Layout& layout = planned->planned().layout;
  if (planned->planned().plan.plan_fingerprint() == stored.plan_fingerprint &&
      layout.layout_fingerprint() == stored.layout_fingerprint) {
    return planned;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this coordinator lays the job out otherwise than the one before it (layout_fingerprint ",
      layout.layout_fingerprint(), " for ", stored.layout_fingerprint,
      "): start the version that it was started with, or a new job from its checkpoint"));
}

}  // namespace

absl::Status Coordinator::Restore() {
  if (options_.store == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const StoredState state, options_.store->Load());
  std::map<int64_t, absl::StatusOr<std::shared_ptr<const PlannedJob>>> plans;
  for (const auto& [id, job] : state.jobs) plans.emplace(id, PlanAgain(job));
  {
    MutexLock lock(mutex_);
    last_job_id_ = state.last_job_id;
    for (const auto& [name, last] : state.last_generations) members_.SetLastGeneration(name, last);
    for (const auto& [id, request] : state.requests) answered_.Add(id, request);
    for (const auto& [id, job] : state.jobs) RestoreJobLocked(state, job, plans.at(id));
    std::multimap<absl::Time, std::string> by_end;
    for (const std::string& name : ended_)
      by_end.emplace(FromTimestamp(jobs_.at(name)->lifecycle.proto().end_time()), name);
    ended_.clear();
    for (const auto& [end, name] : by_end) ended_.push_back(name);
    if (!jobs_.empty()) {
      LogInfo(absl::StrCat("took up ", live_.size(), " live and ", ended_.size(), " ended jobs"));
    }
  }
  Flush();
  return absl::OkStatus();
}

void CoordinatorCore::RestoreJobLocked(const StoredState& state, const StoredJob& stored,
                                       absl::StatusOr<std::shared_ptr<const PlannedJob>> planned) {
  const std::string& name = stored.job.name();
  auto owned = std::make_unique<JobEntry>(JobLifecycle(stored.job), options_.verdict);
  JobEntry& job = *owned;
  job.id = stored.id;
  job.request_id = stored.request_id;
  job.run = stored.events_id;
  job.spec = std::make_shared<const v1::JobSpec>(stored.spec);
  if (planned.ok()) job.planned = *planned;
  job.deadline = members_.now() + ToDuration(stored.spec.timeouts().form());
  job.events = std::make_shared<EventLog>(stored.events_id, options_.max_events);
  if (const auto events = state.events.find(stored.id); events != state.events.end()) {
    job.events->Restore(events->second);
    for (const auto& [cursor, event] : events->second) {
      job.progress_step = std::max(job.progress_step, event.progress().step());
      if (event.has_incident()) job.observer.Restore(event.incident(), members_.now());
    }
  }
  if (const auto stats = state.stats.find(stored.id); stats != state.stats.end())
    job.last_stats = stats->second;
  job.kept.step = stored.job.step();
  if (!job.request_id.empty()) names_by_request_[job.request_id] = name;
  jobs_[name] = std::move(owned);
  const auto members = state.members.find(stored.id);
  if (members != state.members.end()) RestoreGenerationLocked(job, members->second);
  if (job.lifecycle.ended()) {
    job.events->Close();
    ended_.push_back(name);
    return;
  }
  live_[job.id] = &job;
  if (!planned.ok()) {
    FailLocked(job, {planned.status().code(), std::string(planned.status().message()), {}});
  } else if (job.lifecycle.state() == v1::DRAFT && job.reserved) {
    FailLocked(job, {absl::StatusCode::kUnavailable,
                     "the coordinator was started again while the ranks built the model, of which "
                     "it keeps nothing until it is whole; start the job again",
                     {}});
  } else if (job.lifecycle.proto().generation() > 0) {
    v1::Incident incident;
    incident.set_kind(v1::Incident::COORDINATOR_RESTARTED);
    incident.set_message(
        "the coordinator was started again; the job's workers have computed on and join it again");
    NoteLocked(job, std::move(incident));
  }
}

void CoordinatorCore::RestoreGenerationLocked(JobEntry& job, const StoredMembers& members) {
  const v1::Job& state = job.lifecycle.proto();
  const auto of_generation = members.find(HostIndex(0));
  if (of_generation == members.end() || state.world_size() == 0) return;
  const std::set<std::string> words = absl::StrSplit(of_generation->second.state(), ' ');
  Generation generation;
  generation.number = job.kept.generation = state.generation();
  generation.live = !job.lifecycle.ended() && words.count(kLive) != 0;
  generation.ranks.resize(state.world_size());
  // Hosts have indices below 0, the last one first.
  for (const auto& [index, worker] : members) {
    if (index < 0) {
      Generation::Host host;
      host.name = worker.host_name();
      host.incarnation = worker.incarnation();
      host.away = !job.lifecycle.ended();
      generation.hosts.insert(generation.hosts.begin(), host);
    } else if (index < state.world_size()) {
      RankMember& rank = generation.ranks[index];
      rank.state = generation.live ? StateOf(worker) : State::kGone;
      rank.away = generation.live && rank.state != State::kDone;
      rank.incarnation = worker.incarnation();
      rank.pid = worker.pid();
      job.kept.ranks = true;
      if (rank.state == State::kDone) job.verdict.Done(index);
    }
  }
  members_.Restore(state.name(), std::move(generation));
  job.reserved = !job.lifecycle.ended();
  if (job.lifecycle.ended() || job.planned == nullptr) return;
  job.stats.emplace(job.planned->unit_count(), job.planned->world_size());
  job.observer.BeginGeneration(job.planned, job.planned->world_size(),
                               ToDuration(job.spec->timeouts().heartbeat()));
  job.rate.Add(state.step(), options_.clock->Now());
  RestoreRecoveryLocked(job, words);
}

void CoordinatorCore::RestoreRecoveryLocked(JobEntry& job, const std::set<std::string>& words) {
  const v1::Job& state = job.lifecycle.proto();
  const absl::Time rejoin_by = members_.now() + RejoinTime(*job.spec);
  const bool recovers = state.state() == v1::RECOVERING;
  Recovery& recovery = job.recovery;
  recovery.in_place = words.count(kFresh) == 0;
  recovery.growing = words.count(kGrowing) != 0;
  recovery.attempt = std::max(state.recoveries() + 1, recovers ? 2 : 1);
  // Nobody knows any more which ranks were stuck: all of them start anew over their files.
  std::set<int> all;
  for (int rank = 0; rank < state.world_size(); ++rank) all.insert(rank);
  if (words.count(kLive) != 0) {
    job.rejoin_by = rejoin_by;
    recovery.recovers = recovers && recovery.in_place;
    if (recovers) recovery.fresh = std::move(all);
    return BeginRendezvousLocked(job, state.generation());
  }
  recovery.pending = true;
  recovery.restart = std::move(all);
  // Its hosts first get the time to come back.
  recovery.not_before = rejoin_by;
}

void CoordinatorCore::CheckAwayLocked(JobEntry& job) {
  if (members_.now() < job.rejoin_by || job.lifecycle.ended()) return;
  job.rejoin_by = absl::InfiniteFuture();
  const std::string& name = job.lifecycle.proto().name();
  const absl::Duration waited = RejoinTime(*job.spec);
  const std::string what = absl::StrCat("did not come back within ", absl::FormatDuration(waited),
                                        " after the coordinator was started again");
  const Generation* generation = members_.FindGeneration(name);
  if (generation == nullptr || !generation->live) return;
  for (const Generation::Host& host : generation->hosts) {
    if (host.away)
      job.verdict.HostLost(host.name, absl::StrCat("its agent ", what), members_.now());
  }
  for (int rank = 0; rank < static_cast<int>(generation->ranks.size()); ++rank) {
    if (!generation->ranks[rank].away || generation->HostOf(rank).away) continue;
    job.verdict.RankLeaseEnded(rank, generation->HostOf(rank).name, waited, members_.now());
  }
  members_.NobodyIsAway(name);
}

}  // namespace tessera
