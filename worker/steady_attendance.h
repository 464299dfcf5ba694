// A member's presence over all its streams: where the connection to the coordinator breaks, or the
// coordinator goes, a new stream is opened until one holds. The member meanwhile does its work.
//
//   SteadyAttendance attendance({.coordinator = "127.0.0.1:4242"}, {
//       .opening = [&](bool again) { return std::vector{join}; },
//       .on_response = [&](const v1::AttendResponse& response) { return !response.has_end(); },
//       .on_done = [&](const absl::Status& status) { ... }});
//   attendance.Send(ready);
//   attendance.Leave(leave);
//   attendance.AwaitEnd(absl::Seconds(1), absl::Minutes(10));
//
// Nobody knows what the coordinator had taken of a stream that broke. So the first messages of each
// stream say all over again what it must know (`opening`), and a Leave is sent again. Whatever is
// sent must be safe to repeat.
//
// A stream that ends with UNAVAILABLE, or as broken connections and servers on their way out end
// them, is tried again after 0.1 s, and twice as long each time up to 1 s. Every other error is the
// coordinator's answer and is final; so is the end of a stream after Leave, or after on_response
// has returned false.
//
// The handlers run on threads of this class and of gRPC, one at a time, never under a lock; they
// must not wait and must not destroy it. Thread-safety: any thread may call anything but the
// destructor.
#ifndef TESSERA_WORKER_STEADY_ATTENDANCE_H_
#define TESSERA_WORKER_STEADY_ATTENDANCE_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tessera/v1/membership_service.pb.h"
#include "worker/attend_client.h"

namespace tessera {

class SteadyAttendance {
 public:
  struct Handlers {
    // What a stream begins with: a join, and what the coordinator has to be told besides. `again`:
    // it is not the first.
    std::function<std::vector<v1::AttendRequest>(bool again)> opening;
    // Every message, each stream's Welcome included. False: nothing comes after it.
    std::function<bool(const v1::AttendResponse&)> on_response;
    // As AttendClient::Handlers::on_heartbeat.
    std::function<void(v1::Heartbeat&)> on_heartbeat = {};
    // A stream broke, and why; another one is tried. May be absent.
    std::function<void(const absl::Status&)> on_away = {};
    // Exactly once, after everything else: the coordinator's last answer; CANCELLED: the destructor
    // ended it.
    std::function<void(const absl::Status&)> on_done;
  };

  // Opens the first stream. Does not wait.
  SteadyAttendance(AttendClient::Options options, Handlers handlers);
  // Ends the stream if need be and waits until no handler runs any more.
  ~SteadyAttendance();
  SteadyAttendance(const SteadyAttendance&) = delete;
  SteadyAttendance& operator=(const SteadyAttendance&) = delete;

  // On the stream that is open. Where there is none, nothing happens: the next one's opening has
  // it. So say first what `opening` will say, and then send.
  void Send(const v1::AttendRequest& request);
  // Sends `leave` after everything sent before, on this stream and again on each that follows,
  // until the coordinator ends one. Does not wait.
  void Leave(const v1::Leave& leave);

  // Waits while the coordinator is away, at most `timeout`. False: it still is.
  bool AwaitPresence(absl::Duration timeout);
  // Waits for on_done: at most `timeout` while the coordinator is there, and at most `away` while
  // it is not. False: it has not come.
  bool AwaitEnd(absl::Duration timeout, absl::Duration away);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_STEADY_ATTENDANCE_H_
