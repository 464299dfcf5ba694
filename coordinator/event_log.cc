#include "coordinator/event_log.h"

#include <algorithm>
#include <utility>

namespace tessera {

void EventLog::Append(v1::WatchJobResponse event) {
  MutexLock lock(mutex_);
  if (closed_) return;
  events_.push_back(std::move(event));
  if (static_cast<int64_t>(events_.size()) > max_events_) {
    events_.pop_front();
    ++first_;
  }
}

void EventLog::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

EventLog::Batch EventLog::Read(int64_t cursor, int64_t limit) const {
  MutexLock lock(mutex_);
  Batch batch;
  const int64_t last = first_ + static_cast<int64_t>(events_.size());
  batch.next = std::clamp(cursor, first_, last);
  while (batch.next < last && static_cast<int64_t>(batch.events.size()) < limit) {
    batch.events.push_back(events_[batch.next - first_]);
    ++batch.next;
  }
  batch.end = closed_ && batch.next == last;
  return batch;
}

void EventLog::AddWatcher(std::weak_ptr<JobWatcher> watcher) {
  MutexLock lock(mutex_);
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [](const auto& known) { return known.expired(); }),
                  watchers_.end());
  watchers_.push_back(std::move(watcher));
}

void EventLog::Wake() {
  std::vector<std::shared_ptr<JobWatcher>> awake;
  {
    MutexLock lock(mutex_);
    for (const auto& watcher : watchers_) {
      if (auto alive = watcher.lock(); alive != nullptr) awake.push_back(std::move(alive));
    }
  }
  for (const auto& watcher : awake) watcher->Wake();
}

}  // namespace tessera
