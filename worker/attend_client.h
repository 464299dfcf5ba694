// The Attend stream of a member, agent or worker: join, heartbeats, messages both ways, leave.
//
//   auto attendance = AttendClient::Start({.coordinator = "127.0.0.1:4242"}, join, {
//       .on_response = [&](const v1::AttendResponse& response) { ... },
//       .on_done = [&](const absl::Status& status) { ... }});
//   attendance->Send(ready);
//   ...
//   attendance->Leave(leave);
//   attendance->AwaitEnd(absl::Seconds(1));
//
// Heartbeats are sent by a thread of its own from the Welcome on, at the period that it names.
// Nothing here waits for the coordinator: one that is stopped while its connection stands (SIGSTOP,
// a debugger) disturbs nobody; what is sent meanwhile reaches it later. There is no second attempt:
// a stream that has ended stays so.
//
// The handlers run on gRPC's threads, one at a time and never under a lock; they must not wait and
// must not destroy the client. Thread-safety: any thread may call anything but the destructor.
#ifndef TESSERA_WORKER_ATTEND_CLIENT_H_
#define TESSERA_WORKER_ATTEND_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

class AttendClient {
 public:
  struct Options {
    // HOST:PORT.
    std::string coordinator;
    // true: a coordinator that cannot be reached yet is tried again and again, several times a
    // second, until the client is destroyed. false: that ends the stream with UNAVAILABLE.
    bool wait_for_ready = false;
  };
  struct Handlers {
    // Every message of the coordinator in its order, the Welcome included.
    std::function<void(const v1::AttendResponse&)> on_response;
    // Exactly once, after the last on_response: how the stream ended. Errors as
    // MembershipService.Attend; UNAVAILABLE: the connection broke or was never made; CANCELLED: the
    // destructor ended it.
    std::function<void(const absl::Status&)> on_done;
    // Fills a heartbeat, from the thread that sends them; it must not wait either. Empty: it goes
    // as it is.
    std::function<void(v1::Heartbeat&)> on_heartbeat = {};
  };

  // Opens the stream with `join` as its first message. Does not wait.
  static std::unique_ptr<AttendClient> Start(Options options, const v1::AttendRequest& join,
                                             Handlers handlers);
  // Ends the stream if need be and waits until no handler runs any more.
  ~AttendClient();
  AttendClient(const AttendClient&) = delete;
  AttendClient& operator=(const AttendClient&) = delete;

  // Sends after everything sent before. Nothing happens once the stream has ended or Leave was
  // called.
  void Send(const v1::AttendRequest& request);

  // Sends `leave` after everything sent before and closes this side. Does not wait.
  void Leave(const v1::Leave& leave);

  // Waits until the stream has ended, which the coordinator does once it has the Leave. False: it
  // has not within `timeout`. The destructor then cancels the stream, and a coordinator that is
  // stopped may see a member that was lost.
  bool AwaitEnd(absl::Duration timeout);

 private:
  class Stream;
  explicit AttendClient(std::unique_ptr<Stream> stream);

  std::unique_ptr<Stream> stream_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ATTEND_CLIENT_H_
