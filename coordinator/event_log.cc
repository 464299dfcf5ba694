#include "coordinator/event_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/errors.h"

namespace tessera {

void EventLog::Restore(const std::map<int64_t, v1::WatchJobResponse>& events) {
  MutexLock lock(mutex_);
  restored_ = true;
  for (const auto& [cursor, event] : events) {
    // What comes before a gap is as good as missed.
    if (cursor != first_ + static_cast<int64_t>(events_.size()) + 1) {
      events_.clear();
      first_ = cursor - 1;
    }
    events_.push_back(event);
  }
  while (static_cast<int64_t>(events_.size()) > max_events_) {
    events_.pop_front();
    ++first_;
  }
}

int64_t EventLog::Append(v1::WatchJobResponse event) {
  MutexLock lock(mutex_);
  if (closed_) return 0;
  events_.push_back(std::move(event));
  if (static_cast<int64_t>(events_.size()) > max_events_) {
    events_.pop_front();
    ++first_;
  }
  return first_ + static_cast<int64_t>(events_.size());
}

void EventLog::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

absl::StatusOr<int64_t> EventLog::CursorOf(absl::string_view resume_token) const {
  if (resume_token.empty()) return 0;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(resume_token, absl::MaxSplits('.', 1));
  int64_t cursor = 0;
  const bool whole = absl::SimpleAtoi(parts.second, &cursor) && cursor > 0 &&
                     absl::StrCat(parts.first, ".", cursor) == resume_token;
  if (whole && !parts.first.empty() && parts.first != id_) {
    return absl::NotFoundError(
        "resume_token: is of an older job of this name, which is not kept any more; watch again "
        "without it");
  }
  MutexLock lock(mutex_);
  const int64_t last = first_ + static_cast<int64_t>(events_.size());
  if (!whole || parts.first != id_ || (cursor > last && !restored_)) {
    return InvalidField("resume_token", "is of no event; watch again without it");
  }
  return std::min(cursor, last);
}

EventLog::Batch EventLog::Read(int64_t cursor, int64_t limit) const {
  MutexLock lock(mutex_);
  Batch batch;
  const int64_t last = first_ + static_cast<int64_t>(events_.size());
  batch.next = std::clamp(cursor, first_, last);
  const int64_t missed = std::max<int64_t>(batch.next - cursor, 0);
  while (batch.next < last && static_cast<int64_t>(batch.events.size()) < limit) {
    v1::WatchJobResponse& event = batch.events.emplace_back(events_[batch.next - first_]);
    ++batch.next;
    event.set_resume_token(absl::StrCat(id_, ".", batch.next));
    if (batch.events.size() == 1) event.set_missed(missed);
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
