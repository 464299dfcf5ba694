// What the next process of the coordinator is to know of this one's jobs.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/kept_state.h"

namespace tessera {
namespace {

constexpr absl::Duration kProgressPeriod = absl::Seconds(1);
constexpr absl::Duration kStatsPeriod = absl::Seconds(5);
// Figures of more than so many units x ranks are summarised at the job's end alone.
constexpr int64_t kCheapStats = 10000;

std::string KeptState(RankMember::State state) {
  switch (state) {
    case RankMember::State::kReady:
      return "READY";
    case RankMember::State::kDone:
      return "DONE";
    default:
      return "JOINED";
  }
}

v1::Worker KeptRank(const Generation& generation, int rank) {
  const RankMember& member = generation.ranks[rank];
  v1::Worker worker;
  worker.set_rank(rank);
  worker.set_host(generation.HostIndexOf(rank));
  worker.set_pid(member.pid);
  worker.set_incarnation(member.incarnation);
  worker.set_state(KeptState(member.state));
  return worker;
}

// What is to be known of the generation itself, as each of its hosts' state.
std::string KeptState(const JobEntry& job, const Generation& generation) {
  std::string state = generation.live ? kLive : "OVER";
  if (!job.recovery.in_place) absl::StrAppend(&state, " ", kFresh);
  if (job.recovery.growing) absl::StrAppend(&state, " ", kGrowing);
  return state;
}

StoredMembers KeptHosts(const Generation& generation, const std::string& state) {
  StoredMembers hosts;
  for (int host = 0; host < static_cast<int>(generation.hosts.size()); ++host) {
    v1::Worker& worker = hosts[HostIndex(host)];
    worker.set_rank(-1);
    worker.set_host(host);
    worker.set_host_name(generation.hosts[host].name);
    worker.set_incarnation(generation.hosts[host].incarnation);
    worker.set_state(state);
  }
  return hosts;
}

StoredJob StoredOf(const JobEntry& job) {
  StoredJob stored;
  stored.id = job.id;
  stored.request_id = job.request_id;
  stored.job = job.lifecycle.proto();
  stored.spec = *job.spec;
  stored.events_id = job.events->id();
  if (job.planned != nullptr) {
    stored.plan_fingerprint = job.planned->planned().plan.plan_fingerprint();
    stored.layout_fingerprint = job.planned->planned().layout.layout_fingerprint();
  }
  return stored;
}

}  // namespace

StateChange CoordinatorBase::CreationLocked(const JobEntry& job) const {
  StateChange change;
  if (!writer_.keeps()) return change;
  change.durable = true;
  change.jobs[job.id] = StoredOf(job);
  change.last_job_id = job.id;
  const auto before = jobs_.find(job.lifecycle.proto().name());
  if (before != jobs_.end()) change.erased_jobs.insert(before->second->id);
  return change;
}

void CoordinatorBase::KeepJobLocked(JobEntry& job) {
  if (!writer_.keeps()) return;
  const v1::Job& state = job.lifecycle.proto();
  StateChange change;
  change.durable = true;
  change.last_job_id = last_job_id_;
  change.jobs[job.id] = StoredOf(job);
  job.kept.step = state.step();
  const Generation* generation = members_.FindGeneration(state.name());
  if (generation != nullptr && generation->number != job.kept.generation) {
    job.kept.generation = generation->number;
    job.kept.ranks = false;
    job.kept.hosts.clear();
    change.new_generations.insert(job.id);
    change.last_generations[state.name()] = generation->number;
  }
  if (generation != nullptr && !job.lifecycle.ended()) {
    const std::string hosts = KeptState(job, *generation);
    if (hosts != job.kept.hosts) change.members[job.id] = KeptHosts(*generation, hosts);
    job.kept.hosts = hosts;
  }
  if (generation != nullptr && state.state() == v1::RUNNING && !job.kept.ranks) {
    job.kept.ranks = true;
    for (int rank = 0; rank < static_cast<int>(generation->ranks.size()); ++rank) {
      change.members[job.id][rank] = KeptRank(*generation, rank);
    }
  }
  if (job.lifecycle.ended()) change.stats[job.id] = StatsLocked(job);
  writer_.Add(std::move(change));
}

void CoordinatorBase::KeepRankLocked(const RankId& rank) {
  const Generation* generation = members_.FindGeneration(rank.job);
  const JobEntry* job = LiveLocked(rank.job);
  if (!writer_.keeps() || generation == nullptr || job == nullptr) return;
  StateChange change;
  change.durable = true;
  change.members[job->id][rank.rank] = KeptRank(*generation, rank.rank);
  writer_.Add(std::move(change));
}

void CoordinatorBase::KeepEventLocked(JobEntry& job, v1::WatchJobResponse event) {
  StateChange change;
  if (writer_.keeps()) change.events[job.id][0] = event;
  const int64_t cursor = job.events->Append(std::move(event));
  if (!writer_.keeps() || cursor == 0) return;
  StoredEvents& events = change.events[job.id];
  auto kept = events.extract(events.begin());
  kept.key() = cursor;
  events.insert(std::move(kept));
  writer_.Add(std::move(change));
}

void CoordinatorBase::KeepProgressLocked() {
  keep_progress_at_ = members_.now() + kProgressPeriod;
  if (!writer_.keeps()) return;
  StateChange change;
  for (const auto& [id, job] : live_) {
    const v1::Job& state = job->lifecycle.proto();
    if (state.step() == job->kept.step) continue;
    job->kept.step = state.step();
    change.progress[id] = state;
    if (job->planned == nullptr || members_.now() < job->kept.stats_due) continue;
    job->kept.stats_due = members_.now() + kStatsPeriod;
    if (int64_t{job->planned->unit_count()} * job->planned->world_size() <= kCheapStats)
      change.stats[id] = StatsLocked(*job);
  }
  if (!change.empty()) writer_.Add(std::move(change));
}

absl::StatusOr<std::optional<v1::Job>> CoordinatorBase::AnsweredLocked(
    const std::string& method, const std::string& name, const std::string& request_id) {
  const StoredRequest* known = request_id.empty() ? nullptr : answered_.Find(request_id);
  if (known == nullptr) return std::optional<v1::Job>();
  if (known->method != method || known->answer.name() != name) {
    return InvalidField("request_id",
                        absl::StrCat("was used to ", known->method, " job ", known->answer.name(),
                                     "; give each request an id of its own"));
  }
  return known->answer;
}

void CoordinatorBase::KeepAnswerLocked(const std::string& method, const std::string& request_id,
                                       const v1::Job& answer) {
  if (request_id.empty()) return;
  const StoredRequest request{.method = method, .answer = answer};
  const std::string oldest = answered_.Add(request_id, request);
  StateChange change;
  change.durable = true;
  change.requests[request_id] = request;
  if (!oldest.empty()) change.erased_requests.insert(oldest);
  writer_.Add(std::move(change));
}

absl::StatusOr<v1::Job> CoordinatorBase::Acknowledge(const v1::Job& job) {
  TESSERA_RETURN_IF_ERROR(
      Annotate(writer_.Write(),
               absl::StrCat("job ", job.name(), " is ", v1::JobState_Name(job.state()),
                            job.draining() ? " and draining" : "",
                            ", but a coordinator that is started again would not know it")));
  return job;
}

}  // namespace tessera
