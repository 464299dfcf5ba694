// Brings what comes from the coordinator to a thread that polls.
//
//   StreamEvents events;
//   ... .on_done = [&](const absl::Status& status) { events.Push(status); } ...
//   poll(events.fd());  for (const StreamEvent& event : events.TakeAll()) ...
//
// Thread-safe.
#ifndef TESSERA_WORKER_STREAM_EVENTS_H_
#define TESSERA_WORKER_STREAM_EVENTS_H_

#include <sys/eventfd.h>

#include <deque>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/unique_fd.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

// The coordinator is away, and why.
struct Away {
  absl::Status status;
};

// A message, an absence, or the end of it all.
using StreamEvent = std::variant<v1::AttendResponse, Away, absl::Status>;

class StreamEvents {
 public:
  StreamEvents() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // Readable when there are events.
  int fd() const { return wake_.get(); }

  void Push(StreamEvent event) {
    {
      MutexLock lock(mutex_);
      events_.push_back(std::move(event));
    }
    eventfd_write(wake_.get(), 1);
  }

  std::deque<StreamEvent> TakeAll() {
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    MutexLock lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  const UniqueFd wake_;
  Mutex mutex_;
  std::deque<StreamEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tessera

#endif  // TESSERA_WORKER_STREAM_EVENTS_H_
