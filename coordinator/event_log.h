// What watchers of one job see: its states and its training loop's lines, in the order in which
// they happened.
//
//   EventLog log(/*id=*/"17");
//   log.Append(event);                                        the facade
//   TESSERA_ASSIGN_OR_RETURN(int64_t cursor, log.CursorOf(request.resume_token()));
//   EventLog::Batch batch = log.Read(cursor, 64);             a watcher; goes on at batch.next
//
// Holds the last `max_events` events; a watcher that comes later than that misses the oldest and is
// told how many. A watcher is woken after events were appended and reads at its own pace, so a slow
// one costs no memory.
//
// Every event that is read carries a resume token, which names the log and the place behind the
// event: a watcher whose stream broke goes on there, with neither loss nor repetition. So it does
// with a log that was restored; where its last events could not be kept, behind those that were.
//
// Thread-safe. Wake calls watchers and holds no lock while it does.
#ifndef TESSERA_COORDINATOR_EVENT_LOG_H_
#define TESSERA_COORDINATOR_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
    // With resume_token; the first also with `missed`.
    std::vector<v1::WatchJobResponse> events;
    int64_t next = 0;
    // Nothing will come after these.
    bool end = false;
  };

  // `id`: of no other job, nor of an earlier one of the same name. No '.' in it.
  explicit EventLog(std::string id, int64_t max_events = 10000)
      : id_(std::move(id)), max_events_(max_events) {}

  // Goes on with what an earlier process had, by cursor, before anything is appended.
  void Restore(const std::map<int64_t, v1::WatchJobResponse>& events);
  // Returns the cursor behind it; 0: the log is closed.
  int64_t Append(v1::WatchJobResponse event);
  // After the last event.
  void Close();
  const std::string& id() const { return id_; }

  // Where to read on for a resume token; 0, the oldest event, for "". INVALID_ARGUMENT (field
  // resume_token): no log has made it. NOT_FOUND: another log made it.
  absl::StatusOr<int64_t> CursorOf(absl::string_view resume_token) const;
  // At most `limit` events from `cursor`.
  Batch Read(int64_t cursor, int64_t limit) const;

  // A watcher is dropped by letting go of it.
  void AddWatcher(std::weak_ptr<JobWatcher> watcher);
  void Wake();

 private:
  const std::string id_;
  const int64_t max_events_;
  mutable Mutex mutex_;
  std::deque<v1::WatchJobResponse> events_ ABSL_GUARDED_BY(mutex_);
  int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;  // cursor of events_.front()
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool restored_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<JobWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_EVENT_LOG_H_
