// Which host a job gets, and what happens when it gets none in time.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"

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

}  // namespace

void Coordinator::MatchLocked() {
  std::vector<JobEntry*> jobs;
  for (const auto& [id, job] : live_) jobs.push_back(job);
  for (JobEntry* job : jobs) MatchJobLocked(*job);
}

void Coordinator::MatchJobLocked(JobEntry& job) {
  if (job.reserved || job.lifecycle.ended()) return;
  const std::string& name = job.lifecycle.proto().name();
  RefuseWrongProgramsLocked(job);
  const std::vector<MemberId> bound = members_.Waiting(name);
  const bool from_pool = bound.empty();
  for (const MemberId id : from_pool ? members_.Pool() : bound) {
    const HostMember& host = *members_.FindHost(id);
    if (!CheckProgram(job, host.program).ok()) continue;
    const int world_size = ChooseWorldSize(*job.spec, host.local_workers);
    if (world_size > 0) {
      ReserveLocked(job, id, world_size);
      break;
    }
    if (from_pool) continue;
    // The job's own host is too small. With one more it would do, but for the data path.
    if (bound.size() > 1)
      FailLocked(job, SecondHostLocked(job, bound[0], members_.FindHost(bound[1])->name));
    return;
  }
  if (from_pool || !job.reserved) return;
  for (size_t i = 1; i < bound.size(); ++i) {
    const Blame refusal = SecondHostLocked(job, bound[0], members_.FindHost(bound[i])->name);
    members_.Remove(bound[i]);
    CloseLocked(bound[i], WithReason(absl::Status(refusal.code, refusal.reason), "SECOND_HOST"));
  }
}

absl::Status Coordinator::CheckProgram(const JobEntry& job, const std::string& program) {
  const bool attached = job.spec->workload() == "attached";
  if (attached != program.empty()) return absl::OkStatus();
  const std::string& name = job.lifecycle.proto().name();
  return WithReason(
      absl::FailedPreconditionError(
          attached ? absl::StrCat("job ", name,
                                  " has the workload attached, which is a program of "
                                  "yours; start its host with `tessera-worker --job=",
                                  name, " -- PROGRAM ARGS`")
                   : absl::StrCat("job ", name, " has the built-in workload ", job.spec->workload(),
                                  " and not the program ", program,
                                  "; start its host without "
                                  "`-- PROGRAM`, or give the job the workload attached")),
      "WRONG_PROGRAM");
}

// Hosts that came before their job; later ones are refused when they join.
void Coordinator::RefuseWrongProgramsLocked(const JobEntry& job) {
  for (const MemberId id : members_.Waiting(job.lifecycle.proto().name())) {
    const absl::Status status = CheckProgram(job, members_.FindHost(id)->program);
    if (status.ok()) continue;
    members_.Remove(id);
    CloseLocked(id, status);
  }
}

Blame Coordinator::SecondHostLocked(const JobEntry& job, MemberId first,
                                    const std::string& second) {
  const HostMember* host = members_.FindHost(first);
  return {absl::StatusCode::kFailedPrecondition,
          absl::StrCat("job ", job.lifecycle.proto().name(), " is on host ",
                       host == nullptr ? "?" : host->name, " and cannot have host ", second,
                       " too: there is no data path between hosts yet; start one agent with "
                       "--local_workers of at least ",
                       job.spec->mesh().min_workers()),
          std::nullopt};
}

void Coordinator::ReserveLocked(JobEntry& job, MemberId host, int world_size) {
  job.reserved = true;
  members_.Reserve(host, job.lifecycle.proto().name());
  LaterLocked([this, id = job.id, host, world_size, spec = job.spec, planned = job.planned] {
    absl::StatusOr<std::shared_ptr<const PlannedJob>> layout = planned;
    if (planned->world_size() != world_size) layout = PlannedJob::Create(*spec, world_size);
    MutexLock lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    JobEntry& job = *found->second;
    if (!layout.ok()) {
      FailLocked(job, {layout.status().code(), std::string(layout.status().message()), {}});
    } else {
      FormLocked(job, host, *std::move(layout));
    }
  });
}

void Coordinator::FormLocked(JobEntry& job, MemberId host,
                             std::shared_ptr<const PlannedJob> planned) {
  const HostMember* member = members_.FindHost(host);
  if (member == nullptr) {
    // It went while its layout was made.
    job.reserved = false;
    MatchJobLocked(job);
    return;
  }
  const int world_size = planned->world_size();
  job.planned = planned;
  const int64_t generation = members_.Form(job.lifecycle.proto().name(), host, world_size,
                                           ToDuration(job.spec->timeouts().lease()));
  BeginRendezvousLocked(job, generation);
  job.lifecycle.SetGeneration(generation, world_size);
  job.lifecycle.SetReason(absl::StrCat("host ", member->name, " starts ", world_size, " workers"));
  job.stats.emplace(planned->unit_count(), world_size);
  ChangedLocked(job);
  const auto sink = sinks_.find(host);
  if (sink == sinks_.end()) return;
  LaterLocked([sink = sink->second, planned = std::move(planned), spec = job.spec, generation] {
    v1::AttendResponse message;
    *message.mutable_form_host() = planned->Form(*spec, generation);
    sink->Send(std::move(message));
  });
}

void Coordinator::CheckDeadlineLocked(JobEntry& job) {
  if (job.lifecycle.state() != v1::FORMING || members_.now() < job.deadline) return;
  const std::string& name = job.lifecycle.proto().name();
  const std::string form = absl::FormatDuration(ToDuration(job.spec->timeouts().form()));
  Blame blame{absl::StatusCode::kDeadlineExceeded, "", std::nullopt};
  using State = RankMember::State;
  const Generation* generation = members_.FindGeneration(name);
  if (generation != nullptr && generation->live) {
    blame.reason = absl::StrCat(job.all_joined ? Attendance(*generation, State::kReady, "are ready")
                                               : Attendance(*generation, State::kJoined, "joined"),
                                " after ", form, " on host ", generation->host_name);
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
  FailLocked(job, blame);
}

}  // namespace tessera
