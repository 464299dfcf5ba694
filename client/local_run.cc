#include "client/local_run.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/tables.h"
#include "client/watch_printer.h"
#include "common/logging.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// How long the agent may take to end by itself after its job has.
constexpr absl::Duration kPatience = absl::Seconds(5);
// The same after a signal. With kCancelWait and the cluster's own grace this stays under five
// seconds.
constexpr absl::Duration kInterruptedPatience = absl::Milliseconds(500);
// How long a cancelled job may take to end.
constexpr absl::Duration kCancelWait = absl::Milliseconds(1500);
// How long the coordinator may take to notice that the agent is gone.
constexpr absl::Duration kAgentGoneWait = absl::Seconds(4);

}  // namespace

LocalRun::~LocalRun() {
  if (client_ != nullptr) client_->Stop();
}

int LocalRun::Run() {
  absl::Status status = Start();
  if (status.ok()) status = WaitForEnd();
  absl::StatusOr<v1::Job> job = absl::UnknownError("the job has not ended");
  if (status.ok()) {
    MutexLock lock(mutex_);
    job = job_;
  } else {
    job = status;
  }
  absl::StatusOr<v1::JobStats> stats = absl::UnknownError("no stats");
  const bool succeeded = signal_ == 0 && job.ok() && job->state() == v1::SUCCEEDED;
  if (succeeded) stats = client_->GetStats(spec_.name());

  if (client_ != nullptr) client_->Stop();
  if (cluster_ != nullptr) {
    cluster_->Stop(signal_ == 0 ? kPatience : kInterruptedPatience, signals_->fd());
  }
  if (signal_ != 0) {
    Report(absl::CancelledError(absl::StrCat("job ", spec_.name(), " was cancelled by signal ",
                                             signal_, " (", strsignal(signal_), ")")));
    return 128 + signal_;
  }
  if (!job.ok()) return Report(job.status());
  if (!succeeded) {
    // A drained job has saved what it was to save.
    if (job->reason_code() == "DRAINED" && job->step() > 0) Print(FileLines(job->step()));
    return ReportEnded(*job);
  }
  if (!stats.ok()) return Report(stats.status());
  PrintResults(*stats);
  return 0;
}

absl::Status LocalRun::Start() {
  TESSERA_ASSIGN_OR_RETURN(signals_, EndSignals::Block());
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster =
      LocalCluster::Start(binaries_, signals_->fd());
  if (absl::IsCancelled(cluster.status())) signal_ = signals_->Take();
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  Print(absl::StrCat("coordinator ", cluster_->coordinator_address(), "\n"));
  client_ = std::make_unique<Client>(cluster_->coordinator_address());
  job_thread_ = std::jthread([this] { FollowJob(); });
  pthread_setname_np(job_thread_.native_handle(), "job");
  return absl::OkStatus();
}

void LocalRun::FollowJob() {
  absl::StatusOr<v1::Job> job = client_->CreateJob(spec_, /*validate_only=*/false);
  if (job.ok()) {
    SetStage(Stage::kCreated);
    WatchPrinter printer({.states = false});
    job = client_->WatchJob(spec_.name(), printer.Handlers());
  }
  {
    MutexLock lock(mutex_);
    job_ = std::move(job);
  }
  SetStage(Stage::kEnded);
}

void LocalRun::SetStage(Stage stage) {
  {
    MutexLock lock(mutex_);
    stage_ = stage;
  }
  eventfd_write(wake_.get(), 1);
}

absl::Status LocalRun::WaitForEnd() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (stage_ == Stage::kEnded) return absl::OkStatus();
    }
    const ChildProcess* agent = cluster_->agent();
    pollfd waits[4] = {{wake_.get(), POLLIN, 0},
                       {signals_->fd(), POLLIN, 0},
                       {cluster_->coordinator().pidfd(), POLLIN, 0},
                       {agent == nullptr || agent_ended_ ? -1 : agent->pidfd(), POLLIN, 0}};
    const int64_t left = absl::ToInt64Milliseconds(give_up_ - absl::Now());
    poll(
        waits, 4,
        give_up_ == absl::InfiniteFuture() ? -1 : static_cast<int>(std::max<int64_t>(left, 0) + 1));
    if (waits[1].revents != 0) OnSignal();
    if (waits[0].revents != 0) TESSERA_RETURN_IF_ERROR(OnWake());
    if (waits[2].revents != 0) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator ", cluster_->coordinator().Ending(), " during the job"));
    }
    if (waits[3].revents != 0) TESSERA_RETURN_IF_ERROR(OnAgentEnded());
    if (absl::Now() < give_up_) continue;
    if (signal_ != 0) return absl::CancelledError("interrupted");
    return absl::UnavailableError(absl::StrCat("the agent ", agent->Ending(), " before job ",
                                               spec_.name(), " had ended; see its lines above"));
  }
}

absl::Status LocalRun::OnWake() {
  eventfd_t count;
  eventfd_read(wake_.get(), &count);
  if (signal_ != 0 || cluster_->agent() != nullptr) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    if (stage_ != Stage::kCreated) return absl::OkStatus();
  }
  return cluster_->StartAgent(spec_.name(), spec_.mesh().max_workers(), program_);
}

void LocalRun::OnSignal() {
  if (signal_ != 0) {
    // The second one. It is left to be read, so that the cluster's Stop does not wait either.
    give_up_ = absl::Now();
    return;
  }
  const int number = signals_->Take();
  if (number == 0) return;
  signal_ = number;
  LogInfo(absl::StrCat("cancelling job ", spec_.name(), "; a second signal kills"));
  give_up_ = absl::Now() + kCancelWait;
  cancel_thread_ = std::jthread([this, number] {
    client_->CancelJob(spec_.name(), absl::StrCat("`tessera run` got ", strsignal(number)))
        .IgnoreError();
  });
  pthread_setname_np(cancel_thread_.native_handle(), "cancel");
}

absl::Status LocalRun::OnAgentEnded() {
  // One that was killed has lost its host's memory; another goes on from the last checkpoint.
  if (signal_ == 0 && cluster_->agent()->WasKilled() && agents_lost_ < spec_.max_recoveries()) {
    ++agents_lost_;
    LogInfo(absl::StrCat("the agent ", cluster_->agent()->Ending(), "; starting another"));
    return cluster_->StartAgent(spec_.name(), spec_.mesh().max_workers(), program_);
  }
  agent_ended_ = true;
  give_up_ = std::min(give_up_, absl::Now() + kAgentGoneWait);
  return absl::OkStatus();
}

void LocalRun::PrintResults(const v1::JobStats& stats) const {
  Print(absl::StrCat("\n", UnitStatsTable(stats), "\n", RankStatsTable(stats),
                     FileLines(stats.step())));
}

std::string LocalRun::FileLines(int64_t step) const {
  std::string lines;
  const std::string& directory = spec_.checkpoint().dir();
  if (spec_.checkpoint().save())
    absl::StrAppend(&lines, "checkpoint ", directory, "/step-", step, "\n");
  if (spec_.checkpoint().export_())
    absl::StrAppend(&lines, "export ", directory, "/export/model.safetensors\n");
  return lines.empty() ? "" : absl::StrCat("\n", lines);
}

}  // namespace tessera
