// From a lost generation to the next one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

using State = RankMember::State;

// Those that nobody hears any more, and who is to blame though it lives. Of those that have not
// joined, the new processes: they know of no generation that could be over.
std::set<int> RanksToRestart(const JobEntry& job, const Generation& generation, const Blame& blame,
                             absl::Time now) {
  const bool overdue = now >= job.deadline && job.lifecycle.state() != v1::RUNNING;
  std::set<int> restart;
  for (int rank = 0; rank < static_cast<int>(generation.ranks.size()); ++rank) {
    const RankMember& member = generation.ranks[rank];
    const bool missing = member.state == State::kMissing;
    const bool unheard = member.id == 0 && (!missing || job.recovery.fresh.count(rank) != 0);
    const bool late = overdue && (missing || (job.all_joined && member.state == State::kJoined));
    const bool stuck = blame.rank == rank && !job.verdict.IsBroken(rank);
    if (unheard || late || stuck) restart.insert(rank);
  }
  return restart;
}

// Whether there is still time for another host to come in place of a lost one.
bool AwaitsHost(JobEntry& job, absl::Time now) {
  std::optional<absl::Time>& until = job.recovery.replace_by;
  if (!until.has_value()) until = now + ToDuration(job.spec->timeouts().replacement());
  return now < *until;
}

}  // namespace

void CoordinatorCore::LoseLocked(JobEntry& job, Blame blame) {
  NoteLossLocked(job, blame);
  const v1::Job& lost = job.lifecycle.proto();
  if (const std::optional<Blame> end =
          WhyNotRecoverable(*job.spec, job.draft != nullptr, lost, blame);
      end.has_value()) {
    return FailLocked(job, *end);
  }
  std::set<int> restart =
      RanksToRestart(job, *members_.FindGeneration(lost.name()), blame, members_.now());
  if (!job.lifecycle.Recover(blame.reason, /*lost=*/true).ok()) return;
  job.recovery.not_before = members_.now() + job.recovery.back_off.Lost(lost.step());
  EndGenerationLocked(job, std::move(restart));
  ChangedLocked(job);
  RecoverLocked(job);
}

void CoordinatorCore::EndGenerationLocked(JobEntry& job, std::set<int> restart) {
  const std::string& name = job.lifecycle.proto().name();
  const Generation& generation = *members_.FindGeneration(name);
  v1::AttendResponse message;
  message.mutable_end()->set_state(v1::RECOVERING);
  message.mutable_end()->set_reason(job.lifecycle.proto().reason());
  for (const RankMember& rank : generation.ranks) {
    SendLocked(rank.id, message);
    CloseLocked(rank.id, absl::OkStatus());
  }
  for (const Generation::Host& host : generation.hosts) SendLocked(host.id, message);
  members_.EndGeneration(name);
  rendezvous_.End(name, job.lifecycle.proto().reason());
  AnswerFetchesLocked();
  job.verdict = Verdict(options_.verdict);
  Recovery& recovery = job.recovery;
  recovery.restart.insert(restart.begin(), restart.end());
  recovery.ended.clear();
  recovery.growing = false;
  recovery.replace_by.reset();
  recovery.pending = true;
}

void CoordinatorCore::ReformLocked(JobEntry& job) {
  Recovery& recovery = job.recovery;
  const Generation& generation = *members_.FindGeneration(job.lifecycle.proto().name());
  // All of them: whoever had to be told again that a generation is over could end as well.
  std::set<int> all;
  for (int rank = 0; rank < static_cast<int>(generation.ranks.size()); ++rank) all.insert(rank);
  if (!job.lifecycle.Recover(job.lifecycle.proto().reason(), /*lost=*/false).ok()) return;
  recovery.not_before = members_.now();
  EndGenerationLocked(job, std::move(all));
  RecoverLocked(job);
}

std::vector<HostOffer> CoordinatorCore::SparesLocked(const JobEntry& job, bool pool) {
  std::vector<HostOffer> spares;
  std::vector<MemberId> waiting = members_.Waiting(job.lifecycle.proto().name());
  if (pool) {
    for (const MemberId id : members_.Pool()) waiting.push_back(id);
  }
  for (const MemberId id : waiting) {
    const HostMember& host = *members_.FindHost(id);
    if (CheckProgram(*job.spec, host.program).ok()) spares.push_back({id, host.local_workers});
  }
  return spares;
}

void CoordinatorCore::RecoverLocked(JobEntry& job) {
  Recovery& recovery = job.recovery;
  if (job.lifecycle.ended() || !recovery.pending || recovery.planning) return;
  if (members_.now() < recovery.not_before) return;
  std::vector<HostOffer> slots;
  bool missing = false;
  for (const Generation::Host& of : members_.FindGeneration(job.lifecycle.proto().name())->hosts) {
    const HostMember* host = members_.FindHost(of.id);
    slots.push_back(host == nullptr ? HostOffer() : HostOffer{of.id, host->local_workers});
    missing = missing || host == nullptr;
  }
  const bool waited = recovery.growing || (missing && !AwaitsHost(job, members_.now()));
  const HostChoice choice =
      ChooseHosts(*job.spec, job.planned->world_size(), slots, SparesLocked(job, missing),
                  waited ? Patience::kBest : Patience::kWait);
  if (!choice.hosts.empty()) {
    if (choice.world_size == job.planned->world_size())
      return FormNextLocked(job, choice, job.planned);
    return PlanNextLocked(job, choice);
  }
  // A host that went while the job grew is waited for like any other.
  if (!waited || std::exchange(recovery.growing, false)) return;
  const int64_t local = RanksOfHost(*job.spec);
  FailLocked(job, {absl::StatusCode::kUnavailable,
                   absl::StrCat(
                       job.lifecycle.proto().reason(), "; no host ",
                       local == 0 ? "" : absl::StrCat("with ", local, " workers "), "came within ",
                       absl::FormatDuration(ToDuration(job.spec->timeouts().replacement())),
                       " (timeouts.replacement), and those that are left do not make ",
                       job.spec->mesh().min_workers(), " workers (mesh.min_workers)"),
                   std::nullopt});
}

// Plans without the lock, as CreateJob does.
void CoordinatorCore::PlanNextLocked(JobEntry& job, const HostChoice& choice) {
  job.recovery.planning = true;
  LaterLocked([this, id = job.id, choice, spec = job.spec, larger = job.recovery.larger] {
    absl::StatusOr<std::shared_ptr<const PlannedJob>> layout = larger;
    if (larger == nullptr || larger->world_size() != choice.world_size)
      layout = PlannedJob::Create(*spec, choice.world_size);
    if (layout.ok()) {
      if (absl::Status status = CheckRunnable(*spec, (*layout)->planned()); !status.ok())
        layout = status;
    }
    MutexLock lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    JobEntry& job = *found->second;
    job.recovery.planning = false;
    if (!layout.ok()) {
      FailLocked(job, {layout.status().code(),
                       absl::StrCat(job.lifecycle.proto().reason(), "; it cannot go on with ",
                                    choice.world_size, " workers: ", layout.status().message()),
                       std::nullopt});
    } else {
      FormNextLocked(job, choice, *std::move(layout));
    }
  });
}

void CoordinatorCore::FormNextLocked(JobEntry& job, const HostChoice& choice,
                                     std::shared_ptr<const PlannedJob> planned) {
  const std::string name = job.lifecycle.proto().name();
  Recovery& recovery = job.recovery;
  // One went, or was given away, while the layout was made: they are chosen again at the next tick.
  for (const MemberId id : choice.hosts) {
    const HostMember* host = members_.FindHost(id);
    if (host == nullptr || (!host->job.empty() && host->job != name)) return;
  }
  const std::vector<Generation::Host> before = members_.FindGeneration(name)->hosts;
  recovery.recovers = recovery.in_place && choice.same_hosts && planned == job.planned &&
                      job.spec->device() != "cuda";
  if (!recovery.recovers) recovery.in_place = false;
  const int world_size = planned->world_size();
  std::string resized;
  if (world_size != job.planned->world_size()) {
    const v1::Job& now = job.lifecycle.proto();
    resized =
        absl::StrCat("goes on", recovery.growing ? absl::StrCat(" after step ", now.step()) : "",
                     " with ", world_size, " workers instead of ", job.planned->world_size());
    job.lifecycle.SetReason(recovery.growing ? resized : absl::StrCat(now.reason(), "; ", resized));
  }
  job.planned = std::move(planned);
  const int64_t generation =
      members_.Form(name, choice.hosts, world_size, ToDuration(job.spec->timeouts().lease()));
  // There is no place for them any more, and their ranks are of no use.
  v1::AttendResponse over;
  over.mutable_end()->set_state(v1::CANCELLED);
  over.mutable_end()->set_reason(
      absl::StrCat("job ", name, " goes on with ", world_size, " workers on other hosts"));
  for (const Generation::Host& host : before) {
    if (members_.FindHost(host.id) == nullptr) continue;
    if (std::find(choice.hosts.begin(), choice.hosts.end(), host.id) != choice.hosts.end())
      continue;
    SendLocked(host.id, over);
    members_.Remove(host.id);
  }
  recovery.pending = recovery.growing = false;
  recovery.larger.reset();
  recovery.fresh = std::move(recovery.restart);
  recovery.restart.clear();
  recovery.ready.reset();
  ++recovery.attempt;
  job.all_joined = false;
  job.deadline = members_.now() + ToDuration(job.spec->timeouts().form());
  job.lifecycle.SetGeneration(generation, world_size);
  if (!resized.empty()) {
    v1::Incident incident;
    incident.set_kind(v1::Incident::RESIZED);
    incident.set_message(absl::StrCat("the job ", resized));
    NoteLocked(job, std::move(incident));
  }
  SendFormLocked(job);
}

void CoordinatorCore::BeginLocked(JobEntry& job, int64_t step) {
  const bool again = job.lifecycle.state() == v1::RECOVERING;
  if (!job.lifecycle.Run().ok()) return;
  // Its ranks know where they go on: behind what was reported, or before it at a checkpoint.
  if (again && !job.recovery.recovers) {
    job.lifecycle.GoBackTo(step);
  } else {
    job.lifecycle.SetStep(step);
  }
  job.recovery.in_place = true;
  job.recovery.back_off.Began(step);
  job.rate = StepRate();
  job.rate.Add(step, options_.clock->Now());
  NoteOutcomeLocked(job, absl::StrCat("generation ", job.lifecycle.proto().generation(), " began"));
  v1::AttendResponse message;
  message.mutable_start();
  const std::vector<RankMember>& ranks =
      members_.FindGeneration(job.lifecycle.proto().name())->ranks;
  for (const RankMember& member : ranks) SendLocked(member.id, message);
  if (job.lifecycle.proto().draining()) {
    message.mutable_drain();
    for (const RankMember& member : ranks) SendLocked(member.id, message);
    job.lifecycle.SetReason("is drained: it stops after the step that it is in");
  }
  ChangedLocked(job);
  GrowLocked(job);
}

}  // namespace tessera
