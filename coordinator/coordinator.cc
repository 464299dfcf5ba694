#include "coordinator/coordinator.h"

#include <utility>

namespace tessera {

Coordinator::Coordinator(Options options) : CoordinatorCore(options) {
  MutexLock lock(mutex_);
  members_.Advance(options_.clock->Now());
}

void Coordinator::Tick() {
  {
    MutexLock lock(mutex_);
    members_.Advance(options_.clock->Now());
    if (shut_down_) return;
    for (const MemberId member : members_.Expired()) LostLocked(member, /*expired=*/true);
    // A decision takes its job out of live_.
    std::vector<JobEntry*> jobs;
    for (const auto& [id, job] : live_) jobs.push_back(job);
    for (JobEntry* job : jobs) {
      CheckAwayLocked(*job);
      CheckStragglersLocked(*job);
      DecideLocked(*job);
      CheckDeadlineLocked(*job);
      RecoverLocked(*job);
    }
    rendezvous_.Expire(members_.now());
    AnswerFetchesLocked();
    if (members_.now() >= keep_progress_at_) KeepProgressLocked();
  }
  Flush();
  writer_.TryWrite(options_.clock->Now());
}

void Coordinator::Shutdown() {
  {
    MutexLock lock(mutex_);
    shut_down_ = true;
    KeepProgressLocked();
    while (!live_.empty() && !writer_.keeps()) {
      CancelLocked(*live_.begin()->second, absl::StatusCode::kUnavailable,
                   "the coordinator is shutting down");
    }
    while (!sinks_.empty()) {
      const MemberId member = sinks_.begin()->first;
      members_.Remove(member);
      CloseLocked(member, absl::UnavailableError("the coordinator is shutting down"));
    }
  }
  Flush();
  writer_.Write().IgnoreError();  // was logged
}

void CoordinatorBase::SendLocked(MemberId member, v1::AttendResponse message) {
  const auto found = sinks_.find(member);
  if (found == sinks_.end()) return;
  LaterLocked([sink = found->second, message = std::move(message)] { sink->Send(message); });
}

void CoordinatorBase::CloseLocked(MemberId member, const absl::Status& status) {
  const auto found = sinks_.find(member);
  if (found == sinks_.end()) return;
  LaterLocked([sink = std::move(found->second), status] { sink->Close(status); });
  sinks_.erase(found);
}

void CoordinatorBase::LaterLocked(std::function<void()> action) {
  later_.push_back(std::move(action));
}

void CoordinatorBase::Flush() {
  // One thread at a time acts, so that members hear things in the order in which they were decided.
  for (bool mine = false;; mine = true) {
    std::deque<std::function<void()>> actions;
    {
      MutexLock lock(mutex_);
      if (flushing_ && !mine) return;
      flushing_ = !later_.empty();
      if (!flushing_) return;
      actions.swap(later_);
    }
    writer_.TryWrite(options_.clock->Now());
    for (const auto& action : actions) action();
  }
}

}  // namespace tessera
