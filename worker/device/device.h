// Where a rank computes, in what order, and how to know that something is done.
//
// A Stream runs what is put on it in order. An Event is a point in a stream. On a CPU a stream has
// no thread of its own: its work is done by the thread that waits (worker/device/cpu_device.h), so
// that one core per rank computes and moves bytes.
#ifndef TESSERA_WORKER_DEVICE_DEVICE_H_
#define TESSERA_WORKER_DEVICE_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

// A point in a stream's work. Copies are the same point. A default Event has always passed.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    // Whether the point has passed, after doing what can be done of the stream's work without
    // waiting. An error is final.
    virtual absl::StatusOr<bool> Poll() = 0;
    // Returns when the point has passed. Errors: as the work's (see
    // worker/collectives/collectives.h).
    virtual absl::Status Wait() = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  absl::StatusOr<bool> Poll() const {
    return state_ == nullptr ? absl::StatusOr<bool>(true) : state_->Poll();
  }
  absl::Status Wait() const { return state_ == nullptr ? absl::OkStatus() : state_->Wait(); }

 private:
  std::shared_ptr<State> state_;
};

// Named, so that traces and errors can say where something ran.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual absl::string_view name() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_DEVICE_H_
