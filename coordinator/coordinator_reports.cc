// What ranks ask for and report outside their Attend streams.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "coordinator/coordinator.h"
#include "coordinator/proto_time.h"

namespace tessera {
namespace {

v1::WatchJobResponse ProgressEvent(const v1::Progress& progress, const JobEntry& job) {
  v1::WatchJobResponse event;
  *event.mutable_progress() = progress;
  event.mutable_progress()->clear_time_left();
  const v1::Job& ran = job.lifecycle.proto();
  const std::optional<absl::Duration> left = job.rate.TimeLeft(ran.steps());
  if (left.has_value() && !ran.draining() && progress.step() < ran.steps()) {
    SetDuration(*left, event.mutable_progress()->mutable_time_left());
  }
  return event;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const std::string>> Coordinator::ListUnits(
    const v1::ListUnitsRequest& request) {
  std::shared_ptr<const PlannedJob> planned;
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_RETURN_IF_ERROR(members_.CheckGeneration(request.job(), request.generation()));
    planned = job->planned;
    if (planned == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", request.job(), " is DRAFT: it has no units to list yet"));
    }
  }
  return planned->SerializedPage(request.page_token());
}

absl::Status Coordinator::ReportStats(const v1::ReportStatsRequest& request) {
  {
    MutexLock lock(mutex_);
    TESSERA_ASSIGN_OR_RETURN(JobEntry * job, FindLocked(request.job()));
    TESSERA_RETURN_IF_ERROR(members_.CheckRank(request.job(), request.generation(), request.rank(),
                                               request.incarnation()));
    if (request.step() < 0 || request.step() > job->lifecycle.proto().steps()) {
      return InvalidField("step", absl::StrCat("is ", request.step(), "; the job has ",
                                               job->lifecycle.proto().steps(), " steps"));
    }
    if (!job->stats.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", request.job(), " is DRAFT: nothing of it can have been measured"));
    }
    TESSERA_RETURN_IF_ERROR(job->stats->Record(request.rank(), request.samples()));
    job->observer.Report(request);
    job->lifecycle.SetStep(request.step());
    job->lifecycle.SetCheckpointStep(request.checkpoint_step());
    job->rate.Add(job->lifecycle.proto().step(), options_.clock->Now());
    if (request.measured_bytes() > 0) {
      members_.SetMeasuredBytes({request.job(), request.rank()}, request.measured_bytes());
    }
    for (const v1::Progress& progress : request.progress()) {
      if (progress.step() <= job->progress_step) continue;
      job->progress_step = progress.step();
      job->lifecycle.SetLoss(progress.loss());
      KeepEventLocked(*job, ProgressEvent(progress, *job));
    }
    job->last_stats.reset();
    if (request.progress_size() > 0) LaterLocked([events = job->events] { events->Wake(); });
  }
  Flush();
  // The rank forgets its lines now.
  if (request.progress_size() > 0) writer_.TryWrite(options_.clock->Now());
  return absl::OkStatus();
}

}  // namespace tessera
