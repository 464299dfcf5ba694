// What watchers of one job see: its states and its training loop's lines, in the order in which
// they happened.
//
//   EventLog log;
//   log.Append(event);                                   the facade
//   EventLog::Batch batch = log.Read(cursor, 64);        a watcher; goes on at batch.next
//
// Holds the last `max_events` events; a watcher that comes later than that misses the oldest. A
// watcher is woken after events were appended and reads at its own pace, so a slow one costs no
// memory.
//
// Thread-safe. Wake calls watchers and holds no lock while it does.
#ifndef TESSERA_COORDINATOR_EVENT_LOG_H_
#define TESSERA_COORDINATOR_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "tessera/v1/job_service.pb.h"

namespace tessera {

class JobWatcher {
 public:
  virtual ~JobWatcher() = default;
  // There is something to read. May be called when there is not. Must not wait.
  virtual void Wake() = 0;
};

class EventLog {
 public:
  struct Batch {
    std::vector<v1::WatchJobResponse> events;
    int64_t next = 0;
    // Nothing will come after these.
    bool end = false;
  };

  explicit EventLog(int64_t max_events = 10000) : max_events_(max_events) {}

  void Append(v1::WatchJobResponse event);
  // After the last event.
  void Close();
  // At most `limit` events from `cursor` (0: the oldest).
  Batch Read(int64_t cursor, int64_t limit) const;

  // A watcher is dropped by letting go of it.
  void AddWatcher(std::weak_ptr<JobWatcher> watcher);
  void Wake();

 private:
  const int64_t max_events_;
  mutable Mutex mutex_;
  std::deque<v1::WatchJobResponse> events_ ABSL_GUARDED_BY(mutex_);
  int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // cursor of events_.front()
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<JobWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_EVENT_LOG_H_
