#include "worker/checkpoint_saver.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint_index.h"
#include "common/clock.h"
#include "common/logging.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "worker/blame.h"

namespace tessera {
namespace {

// How long a rank that waits for its own writing leaves the others without a word.
constexpr absl::Duration kPatience = absl::Milliseconds(100);
// A thread that is told to end does so within the writing of a few MiB; one that a disk holds is
// left behind.
constexpr absl::Duration kEndWait = absl::Seconds(10);

}  // namespace

struct CheckpointSaver::Work {
  Mutex mutex;
  CondVar changed;
  bool done ABSL_GUARDED_BY(mutex) = false;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
  absl::Time last_progress ABSL_GUARDED_BY(mutex) = Clock::Real()->Now();
};

struct CheckpointSaver::Report {
  enum State : int64_t { kNothing, kGoingOn, kDone, kFailed };
  int64_t step = 0;
  int64_t state = kNothing;
  char text[104] = {};  // a directory's name, or of an error what fits
};

CheckpointSaver::CheckpointSaver(Options options)
    : options_(std::move(options)), last_saved_(options_.loaded_step) {}

CheckpointSaver::~CheckpointSaver() { JoinThread(); }

void CheckpointSaver::JoinThread() {
  if (!thread_.joinable()) return;
  bool done = false;
  {
    MutexLock lock(work_->mutex);
    work_->cancelled = true;
    const absl::Time end = Clock::Real()->Now() + kEndWait;
    while (!work_->done && Clock::Real()->Now() < end)
      work_->changed.WaitFor(lock, end - Clock::Real()->Now());
    done = work_->done;
  }
  done ? thread_.join() : thread_.detach();
}

bool CheckpointSaver::wanted() const {
  return options_.job.checkpoint().save() && !options_.job.checkpoint().dir().empty();
}

absl::StatusOr<std::vector<CheckpointSaver::Report>> CheckpointSaver::Tell(
    Report own, const std::string& text) {
  own.step = index_.step();
  std::memcpy(own.text, text.data(), std::min(text.size(), sizeof(own.text) - 1));
  static_assert(std::is_trivially_copyable_v<Report> && sizeof(Report) <= 128);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> payloads,
                           options_.collectives->Exchange(
                               absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own)),
                               absl::StrCat("the checkpoint of step ", own.step)));
  std::vector<Report> reports(payloads.size());
  for (size_t i = 0; i < payloads.size(); ++i) {
    std::memcpy(&reports[i], payloads[i].data(), sizeof(Report));
    reports[i].text[sizeof(reports[i].text) - 1] = '\0';
    const int rank = static_cast<int>(i);
    if (reports[i].step != own.step) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " saves step ", reports[i].step, " where this one saves ", own.step));
    }
    if (reports[i].state == Report::kFailed) {
      // The rank itself knows all of it.
      return BlameRank(absl::InternalError(absl::StrCat(
                           "the checkpoint of step ", own.step, " was not saved: rank ", rank, ": ",
                           rank == options_.rank ? text : std::string(reports[i].text))),
                       rank);
    }
  }
  return reports;
}

std::string CheckpointSaver::OwnReport(Report* report) const {
  report->state = Report::kDone;
  if (work_ == nullptr) return "";
  MutexLock lock(work_->mutex);
  if (!work_->done && Clock::Real()->Now() - work_->last_progress > options_.stall) {
    work_->status.Update(absl::DeadlineExceededError(
        absl::StrCat("nothing could be written into ", options_.job.checkpoint().dir(), " for ",
                     absl::FormatDuration(options_.stall))));
  }
  if (!work_->done) report->state = Report::kGoingOn;
  if (!work_->status.ok()) report->state = Report::kFailed;
  return std::string(work_->status.message());
}

absl::Status CheckpointSaver::AfterStep(const TrainingState& state) {
  if (!wanted()) return absl::OkStatus();
  const int64_t every = options_.job.checkpoint().every();
  if (every > 0 && state.step % every == 0) {
    TESSERA_RETURN_IF_ERROR(Await());
    return Begin(state, /*copy=*/true);
  }
  return phase_ == Phase::kIdle ? absl::OkStatus() : Look();
}

absl::Status CheckpointSaver::Finish(const TrainingState& state, bool always) {
  if (!wanted() && (!always || options_.job.checkpoint().dir().empty())) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Await());
  if (last_saved_ == state.step) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Begin(state, /*copy=*/false));
  return Await();
}

absl::Status CheckpointSaver::Begin(const TrainingState& state, bool copy) {
  index_ = options_.index;
  SetTrainingState(state, &index_);
  work_ = nullptr;
  Report own;
  own.state = Report::kDone;
  std::string text;
  if (commits()) {
    const absl::StatusOr<std::string> name =
        MakeWritingDirectory(options_.job.checkpoint().dir(), state.step);
    if (!name.ok()) own.state = Report::kFailed;
    text = name.ok() ? *name : std::string(name.status().message());
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Report> reports, Tell(own, text));
  writing_ = reports.front().text;
  phase_ = Phase::kWriting;
  return options_.replica_index == 0 ? StartWriting(copy) : absl::OkStatus();
}

absl::Status CheckpointSaver::StartWriting(bool copy) {
  std::vector<absl::Span<const char>> pieces =
      ShardPieces(index_, options_.shard_index, *options_.store);
  std::shared_ptr<char[]> copied;
  if (copy) {
    size_t bytes = 0;
    for (const absl::Span<const char>& piece : pieces) bytes += piece.size();
    copied.reset(new (std::nothrow) char[bytes]);
    if (copied == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for the ", bytes, " bytes of a checkpoint's copy"));
    }
    char* next = copied.get();
    for (const absl::Span<const char>& piece : pieces) {
      std::memcpy(next, piece.data(), piece.size());
      next += piece.size();
    }
    pieces = {absl::MakeConstSpan(copied.get(), bytes)};
  }
  const std::string directory = options_.job.checkpoint().dir();
  Start([directory, writing = writing_,
         name = CheckpointShardFile(options_.shard_index, index_.shard_count()),
         start = CheckpointShardStart(index_, options_.shard_index), first = commits(), copied,
         pieces = std::move(pieces)](const WriteProgress& progress) {
    if (first) RemoveLeftovers(directory, writing);
    return WriteShardFile(absl::StrCat(directory, "/", writing), name, start, pieces, progress);
  });
  return absl::OkStatus();
}

void CheckpointSaver::StartCommitting() {
  Start([directory = options_.job.checkpoint().dir(), writing = writing_,
         keep = options_.job.checkpoint().keep(), index = index_](const WriteProgress& progress) {
    return CommitCheckpoint(directory, writing, keep, index, progress);
  });
}

void CheckpointSaver::Start(std::function<absl::Status(const WriteProgress&)> work) {
  JoinThread();
  work_ = std::make_shared<Work>();
  thread_ = std::jthread(
      [shared = work_, work = std::move(work), faults = options_.faults, step = index_.step()] {
        if (faults != nullptr) faults->set_step(step);
        const absl::Status status = work([&](absl::string_view point) {
          if (faults != nullptr && !point.empty()) faults->Hit(point);
          MutexLock lock(shared->mutex);
          shared->last_progress = Clock::Real()->Now();
          return shared->cancelled ? absl::CancelledError("the session is over") : absl::OkStatus();
        });
        MutexLock lock(shared->mutex);
        shared->status.Update(status);
        shared->done = true;
        shared->changed.NotifyAll();
      });
  pthread_setname_np(thread_.native_handle(), "checkpoint");
}

absl::Status CheckpointSaver::Look() {
  Report own;
  const std::string text = OwnReport(&own);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Report> reports, Tell(own, text));
  for (const Report& report : reports) {
    if (report.state != Report::kDone) return absl::OkStatus();
  }
  JoinThread();
  work_ = nullptr;
  if (phase_ == Phase::kWriting) {
    phase_ = Phase::kCommitting;
    if (commits()) StartCommitting();
    return absl::OkStatus();
  }
  phase_ = Phase::kIdle;
  last_saved_ = index_.step();
  if (commits()) {
    LogInfo(absl::StrCat("saved ", options_.job.checkpoint().dir(), "/",
                         CheckpointDirectory(index_.step())));
  }
  return absl::OkStatus();
}

absl::Status CheckpointSaver::Await() {
  while (phase_ != Phase::kIdle) {
    if (work_ != nullptr) {
      MutexLock lock(work_->mutex);
      if (!work_->done) work_->changed.WaitFor(lock, kPatience);
    }
    TESSERA_RETURN_IF_ERROR(Look());
  }
  return absl::OkStatus();
}

}  // namespace tessera
