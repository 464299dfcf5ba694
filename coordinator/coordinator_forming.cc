// Which host a job gets, and what happens when it gets none in time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

// "2 of 4 workers joined; ranks 2-3 are missing".
std::string Attendance(const Generation& generation, RankMember::State wanted,
                       absl::string_view did) {
  const int there = generation.CountAtLeast(wanted);
  const int all = static_cast<int>(generation.ranks.size());
  return absl::StrCat(there, " of ", all, " workers ", did, "; ", generation.Missing(wanted),
                      all - there == 1 ? " is missing" : " are missing");
}

// "1 of 2 hosts with 4 workers joined (host b offers 2)".
std::string HostAttendance(const JobEntry& job, const Membership& members) {
  const int64_t local = RanksOfHost(*job.spec);
  int there = 0;
  std::vector<std::string> small;
  for (const MemberId id : members.Waiting(job.lifecycle.proto().name())) {
    const HostMember& host = *members.FindHost(id);
    if (host.local_workers >= local) {
      ++there;
    } else {
      small.push_back(absl::StrCat("host ", host.name, " offers ", host.local_workers));
    }
  }
  return absl::StrCat(there, " of ", (job.spec->mesh().min_workers() + local - 1) / local,
                      " hosts with ", local, " workers joined", small.empty() ? "" : " (",
                      absl::StrJoin(small, ", "), small.empty() ? "" : ")");
}

}  // namespace

void CoordinatorCore::MatchLocked() {
  std::vector<JobEntry*> jobs;
  for (const auto& [id, job] : live_) jobs.push_back(job);
  for (JobEntry* job : jobs) MatchJobLocked(*job);
}

void CoordinatorCore::MatchJobLocked(JobEntry& job) {
  if (job.recovery.pending) return RecoverLocked(job);
  if (job.reserved || job.lifecycle.ended()) return;
  const std::string& name = job.lifecycle.proto().name();
  RefuseWrongProgramsLocked(job);
  const std::vector<MemberId> bound = members_.Waiting(name);
  const bool from_pool = bound.empty();
  const std::vector<MemberId> offered = from_pool ? members_.Pool() : bound;
  if (RanksOfHost(*job.spec) > 0) return MatchHostsLocked(job, offered);
  for (const MemberId id : offered) {
    const HostMember& host = *members_.FindHost(id);
    if (!CheckProgram(*job.spec, host.program).ok()) continue;
    const int world_size = ChooseWorldSize(*job.spec, host.local_workers);
    if (world_size > 0) return ReserveLocked(job, {id}, world_size);
    if (from_pool) continue;
    // Together they might do, but the job says that it has one host.
    if (bound.size() > 1)
      FailLocked(job, SecondHostLocked(job, bound[0], members_.FindHost(bound[1])->name));
    return;
  }
}

// The oldest of those that are large enough, as soon as they are enough.
void CoordinatorCore::MatchHostsLocked(JobEntry& job, const std::vector<MemberId>& offered) {
  const int local = RanksOfHost(*job.spec);
  std::vector<MemberId> hosts;
  for (const MemberId id : offered) {
    const HostMember& host = *members_.FindHost(id);
    if (CheckProgram(*job.spec, host.program).ok() && host.local_workers >= local)
      hosts.push_back(id);
  }
  const int world_size = ChooseWorldSize(*job.spec, static_cast<int>(hosts.size()) * local);
  if (world_size == 0) return;
  hosts.resize(world_size / local);
  ReserveLocked(job, hosts, world_size);
}

// Hosts that came before their job; later ones are refused when they join.
void CoordinatorCore::RefuseWrongProgramsLocked(const JobEntry& job) {
  for (const MemberId id : members_.Waiting(job.lifecycle.proto().name())) {
    const absl::Status status = CheckProgram(*job.spec, members_.FindHost(id)->program);
    if (status.ok()) continue;
    members_.Remove(id);
    CloseLocked(id, status);
  }
}

Blame CoordinatorCore::SecondHostLocked(const JobEntry& job, MemberId first,
                                        const std::string& second) {
  const HostMember* host = members_.FindHost(first);
  const std::string there = absl::StrCat("job ", job.lifecycle.proto().name(), " is on host ",
                                         host == nullptr ? "?" : host->name);
  return {absl::StatusCode::kFailedPrecondition,
          RanksOfHost(*job.spec) > 0
              ? absl::StrCat(there, " and has all its hosts; there is no place for host ", second)
              : absl::StrCat(there, " and cannot have host ", second,
                             " too: mesh.local_world_size, the ranks of each host, says that all "
                             "are on one; set it, or start one agent with --local_workers of at "
                             "least ",
                             job.spec->mesh().min_workers()),
          std::nullopt};
}

void CoordinatorCore::ReserveLocked(JobEntry& job, const std::vector<MemberId>& hosts,
                                    int world_size) {
  const std::string& name = job.lifecycle.proto().name();
  job.reserved = true;
  for (const MemberId host : hosts) members_.Reserve(host, name);
  // Others that are bound to the job have no place, unless it can grow.
  for (const MemberId id : members_.Waiting(name)) {
    if (job.lifecycle.state() != v1::DRAFT &&
        CanGrow(*job.spec, static_cast<int>(hosts.size()), world_size)) {
      break;
    }
    const Blame refusal = SecondHostLocked(job, hosts[0], members_.FindHost(id)->name);
    members_.Remove(id);
    CloseLocked(id, WithReason(absl::Status(refusal.code, refusal.reason), "SECOND_HOST"));
  }
  if (job.lifecycle.state() == v1::DRAFT) return FormDraftLocked(job, hosts, world_size);
  LaterLocked([this, id = job.id, hosts, world_size, spec = job.spec, planned = job.planned] {
    absl::StatusOr<std::shared_ptr<const PlannedJob>> layout = planned;
    if (planned->world_size() != world_size) layout = PlannedJob::Create(*spec, world_size);
    if (layout.ok()) {
      if (absl::Status status = CheckRunnable(*spec, (*layout)->planned()); !status.ok())
        layout = status;
    }
    MutexLock lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    JobEntry& job = *found->second;
    if (!layout.ok()) {
      FailLocked(job, {layout.status().code(), std::string(layout.status().message()), {}});
    } else {
      FormLocked(job, hosts, *std::move(layout));
    }
  });
}

void CoordinatorCore::FormLocked(JobEntry& job, const std::vector<MemberId>& hosts,
                                 std::shared_ptr<const PlannedJob> planned) {
  std::vector<std::string> names;
  for (const MemberId host : hosts) {
    const HostMember* member = members_.FindHost(host);
    if (member != nullptr) names.push_back(member->name);
  }
  if (names.size() < hosts.size()) {
    // One went while the layout was made: the others wait again.
    for (const MemberId host : hosts) members_.Reserve(host, "");
    job.reserved = false;
    MatchJobLocked(job);
    return;
  }
  const int world_size = planned->world_size();
  job.planned = std::move(planned);
  const int64_t generation = members_.Form(job.lifecycle.proto().name(), hosts, world_size,
                                           ToDuration(job.spec->timeouts().lease()));
  job.lifecycle.SetGeneration(generation, world_size);
  job.lifecycle.SetReason(
      absl::StrCat(names.size() == 1 ? "host " : "hosts ", absl::StrJoin(names, ", "),
                   names.size() == 1 ? " starts " : " start ", world_size, " workers"));
  SendFormLocked(job);
}

void CoordinatorCore::SendFormLocked(JobEntry& job) {
  const Generation& generation = *members_.FindGeneration(job.lifecycle.proto().name());
  BeginRendezvousLocked(job, generation.number);
  job.stats.emplace(job.planned->unit_count(), job.planned->world_size());
  job.observer.BeginGeneration(job.planned, job.planned->world_size(),
                               ToDuration(job.spec->timeouts().heartbeat()));
  ChangedLocked(job);
  const auto of_all = FormOfAllLocked(job);
  for (int host = 0; host < static_cast<int>(generation.hosts.size()); ++host)
    SendFormToLocked(job, host, of_all);
}

std::shared_ptr<const std::string> CoordinatorCore::FormOfAllLocked(const JobEntry& job) {
  const Generation& generation = *members_.FindGeneration(job.lifecycle.proto().name());
  std::vector<std::string> names;
  for (const Generation::Host& of : generation.hosts) names.push_back(of.name);
  v1::FormHost of_job;
  of_job.set_run(job.run);
  of_job.set_attempt(job.recovery.attempt);
  of_job.set_recover(job.recovery.recovers);
  // The spec with its model can be large and the hosts many, so it is serialized once.
  auto of_all = std::make_shared<std::string>();
  LaterLocked([of_all, planned = job.planned, spec = job.spec, number = generation.number,
               names = std::move(names), of_job = std::move(of_job)] {
    v1::FormHost form = planned->FormOfAll(*spec, number, names);
    form.MergeFrom(of_job);
    *of_all = form.SerializeAsString();
  });
  return of_all;
}

void CoordinatorCore::SendFormToLocked(const JobEntry& job, int host,
                                       std::shared_ptr<const std::string> of_all) {
  const Generation& generation = *members_.FindGeneration(job.lifecycle.proto().name());
  const auto sink = sinks_.find(generation.hosts[host].id);
  if (sink == sinks_.end()) return;
  std::vector<int> restart;
  for (const int rank : job.recovery.fresh) {
    if (job.recovery.recovers && generation.HostIndexOf(rank) == host) restart.push_back(rank);
  }
  LaterLocked([sink = sink->second, planned = job.planned, number = generation.number, host,
               of_all = std::move(of_all), restart = std::move(restart)] {
    v1::FormHost own = planned->FormOfHost(number, host);
    own.mutable_restart_ranks()->Add(restart.begin(), restart.end());
    sink->SendForm(of_all, own);
  });
}

void CoordinatorCore::CheckDeadlineLocked(JobEntry& job) {
  const bool draft = job.lifecycle.state() == v1::DRAFT;
  if (draft && job.all_joined) return CheckDraftDeadlineLocked(job);
  const bool recovers = job.lifecycle.state() == v1::RECOVERING;
  if (recovers && job.recovery.pending) return;
  if ((!draft && !recovers && job.lifecycle.state() != v1::FORMING) ||
      members_.now() < job.deadline) {
    return;
  }
  const std::string& name = job.lifecycle.proto().name();
  const std::string form = absl::FormatDuration(ToDuration(job.spec->timeouts().form()));
  Blame blame{absl::StatusCode::kDeadlineExceeded, "", std::nullopt};
  using State = RankMember::State;
  const Generation* generation = members_.FindGeneration(name);
  if (generation != nullptr && generation->live) {
    blame.reason =
        absl::StrCat(job.all_joined ? Attendance(*generation, State::kReady, "are ready")
                                    : Attendance(*generation, State::kJoined, "joined"),
                     " after ", form, " on ",
                     generation->MissingOn(job.all_joined ? State::kReady : State::kJoined));
  } else if (const int local = RanksOfHost(*job.spec); local > 0) {
    blame.reason = absl::StrCat(HostAttendance(job, members_), " after ", form,
                                "; start tessera-worker --job=", name, " --local_workers=", local,
                                job.spec->workload() == "attached" ? " -- PROGRAM" : "",
                                " on each host in time, or raise timeouts.form");
  } else {
    // As if the host that waits, and is too small, had been taken.
    Generation wanted;
    wanted.ranks.resize(job.spec->mesh().min_workers());
    const std::vector<MemberId> bound = members_.Waiting(name);
    const size_t offered = bound.empty() ? 0 : members_.FindHost(bound[0])->local_workers;
    for (size_t rank = 0; rank < std::min(offered, wanted.ranks.size()); ++rank) {
      wanted.ranks[rank].state = State::kJoined;
    }
    blame.reason = absl::StrCat(Attendance(wanted, State::kJoined, "joined"), " after ", form,
                                "; start tessera-worker --job=", name,
                                " --local_workers=", wanted.ranks.size(),
                                job.spec->workload() == "attached" ? " -- PROGRAM" : "",
                                " in time, or raise timeouts.form");
  }
  LoseLocked(job, blame);
}

}  // namespace tessera
