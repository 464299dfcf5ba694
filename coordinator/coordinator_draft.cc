// Jobs whose ranks build the model: from the start of the ranks to the plan.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/job_planner.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

struct Sealed {
  std::shared_ptr<const v1::JobSpec> spec;
  std::shared_ptr<const PlannedJob> planned;
};

absl::StatusOr<Sealed> Plan(SharedDraft& shared, int world_size) {
  MutexLock lock(shared.mutex);
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, shared.draft.Seal());
  TESSERA_ASSIGN_OR_RETURN(auto planned, PlannedJob::Create(spec, world_size));
  TESSERA_RETURN_IF_ERROR(CheckRunnable(spec, planned->planned().plan));
  TESSERA_RETURN_IF_ERROR(
      shared.draft.CheckSealed(planned->planned().plan, planned->planned().layout));
  return Sealed{std::make_shared<const v1::JobSpec>(std::move(spec)), std::move(planned)};
}

}  // namespace

void CoordinatorCore::FormDraftLocked(JobEntry& job, const std::vector<MemberId>& hosts,
                                      int world_size) {
  const std::string& name = job.lifecycle.proto().name();
  const int64_t generation =
      members_.Form(name, hosts, world_size, ToDuration(job.spec->timeouts().lease()));
  job.draft = std::make_shared<SharedDraft>(*job.spec, world_size);
  job.built.assign(world_size, members_.now());
  job.lifecycle.SetGeneration(generation, world_size);
  job.lifecycle.SetReason(absl::StrCat(
      members_.FindGeneration(name)->MissingOn(RankMember::State::kJoined),
      hosts.size() == 1 ? " starts " : " start ", world_size, " workers, which build the model"));
  ChangedLocked(job);
  const int local = world_size / static_cast<int>(hosts.size());
  v1::AttendResponse message;
  v1::FormHost& form = *message.mutable_form_host();
  form.set_job(name);
  form.set_generation(generation);
  *form.mutable_spec() = *job.spec;
  form.set_draft(true);
  for (int host = 0; host < static_cast<int>(hosts.size()); ++host) {
    form.set_host(host);
    form.clear_assignments();
    for (int rank = host * local; rank < (host + 1) * local; ++rank) {
      v1::Assignment* assignment = form.add_assignments();
      assignment->set_job(name);
      assignment->set_generation(generation);
      assignment->set_rank(rank);
      assignment->set_world_size(world_size);
      assignment->set_local_rank_start(host * local);
      assignment->set_local_world_size(local);
    }
    SendLocked(hosts[host], message);
  }
}

absl::StatusOr<std::shared_ptr<SharedDraft>> CoordinatorCore::FindDraft(
    const v1::AnnounceModuleRequest& of) {
  MutexLock lock(mutex_);
  TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(of.job()));
  TESSERA_RETURN_IF_ERROR(
      members_.CheckRank(of.job(), of.generation(), of.rank(), of.incarnation()));
  if (job->draft != nullptr) return job->draft;
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "the model of job ", of.job(),
                        " is given, and not built by its ranks; set model.built of the job")),
                    "PLAN_SEALED");
}

void CoordinatorCore::Built(const v1::AnnounceModuleRequest& of, bool finished, bool complete) {
  {
    MutexLock lock(mutex_);
    JobEntry* job = LiveLocked(of.job());
    const Generation* generation = members_.FindGeneration(of.job());
    if (job == nullptr || generation == nullptr || generation->number != of.generation() ||
        job->lifecycle.state() != v1::DRAFT) {
      return;
    }
    if (of.rank() < static_cast<int>(job->built.size()))
      job->built[of.rank()] = finished ? absl::InfiniteFuture() : members_.now();
    if (complete && !std::exchange(job->sealing, true)) SealLocked(*job);
  }
  Flush();
}

absl::StatusOr<v1::AnnounceModuleResponse> Coordinator::AnnounceModule(
    const v1::AnnounceModuleRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const auto shared, FindDraft(request));
  absl::StatusOr<v1::AnnounceModuleResponse> answer;
  bool finished = false, complete = false;
  {
    MutexLock lock(shared->mutex);
    answer = shared->draft.Announce(request.rank(), request.announcement());
    finished = shared->draft.finished(request.rank());
    complete = shared->draft.complete();
  }
  if (answer.ok()) Built(request, finished, complete);
  return answer;
}

absl::Status Coordinator::ChangeModelDType(const v1::ChangeModelDTypeRequest& request) {
  v1::AnnounceModuleRequest of;
  of.set_job(request.job());
  of.set_generation(request.generation());
  of.set_rank(request.rank());
  of.set_incarnation(request.incarnation());
  TESSERA_ASSIGN_OR_RETURN(const auto shared, FindDraft(of));
  {
    MutexLock lock(shared->mutex);
    TESSERA_RETURN_IF_ERROR(
        shared->draft.ChangeDType(request.rank(), request.number(), request.dtype()));
  }
  Built(of, /*finished=*/false, /*complete=*/false);
  return absl::OkStatus();
}

// Plans without the lock, as CreateJob does.
void CoordinatorCore::SealLocked(JobEntry& job) {
  LaterLocked([this, id = job.id, shared = job.draft,
               world_size = job.lifecycle.proto().world_size()] {
    absl::StatusOr<Sealed> sealed = Plan(*shared, world_size);
    MutexLock lock(mutex_);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    JobEntry& job = *found->second;
    if (!sealed.ok()) {
      return FailLocked(job, {sealed.status().code(), std::string(sealed.status().message()), {}});
    }
    job.spec = std::move(sealed->spec);
    job.planned = std::move(sealed->planned);
    if (!job.lifecycle.Seal().ok()) return;
    ChangedLocked(job);
    if (!job.lifecycle.Form().ok()) return;
    job.deadline = members_.now() + ToDuration(job.spec->timeouts().form());
    job.lifecycle.SetReason("the workers map their memory");
    SendFormLocked(job);
  });
}

void CoordinatorCore::CheckDraftDeadlineLocked(JobEntry& job) {
  if (job.sealing) return;
  const absl::Duration form = ToDuration(job.spec->timeouts().form());
  for (size_t rank = 0; rank < job.built.size(); ++rank) {
    if (members_.now() < job.built[rank] + form) continue;
    const Generation* generation = members_.FindGeneration(job.lifecycle.proto().name());
    return FailLocked(
        job,
        {absl::StatusCode::kDeadlineExceeded,
         absl::StrCat("rank ", rank, " on host ", generation->HostOf(static_cast<int>(rank)).name,
                      " has announced no module for ", absl::FormatDuration(form),
                      " and has not wrapped the root; see what its program does, or raise "
                      "timeouts.form"),
         static_cast<int>(rank)});
  }
}

}  // namespace tessera
