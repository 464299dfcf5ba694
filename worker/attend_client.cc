#include "worker/attend_client.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/grpc_channel.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "tessera/v1/membership_service.grpc.pb.h"

namespace tessera {
namespace {

constexpr absl::Duration kDefaultHeartbeat = absl::Seconds(1);
// A coordinator that asks for more than this would only load itself.
constexpr absl::Duration kMinHeartbeat = absl::Milliseconds(10);

absl::Duration HeartbeatOf(const v1::Welcome& welcome) {
  if (!welcome.has_heartbeat()) return kDefaultHeartbeat;
  return std::max(kMinHeartbeat, absl::Seconds(welcome.heartbeat().seconds()) +
                                     absl::Nanoseconds(welcome.heartbeat().nanos()));
}

}  // namespace

// The reactor. gRPC allows one write at a time, and writes that do not start in a reaction need a
// hold, which keeps OnDone away. The hold is released once, by whoever finds the stream closed and
// no write under way.
class AttendClient::Stream : public grpc::ClientBidiReactor<v1::AttendRequest, v1::AttendResponse> {
 public:
  Stream(const Options& options, Handlers handlers)
      : handlers_(std::move(handlers)),
        stub_(v1::MembershipService::NewStub(MakeChannel(options.coordinator))) {
    context_.set_wait_for_ready(options.wait_for_ready);
  }

  void Start(const v1::AttendRequest& join) {
    stub_->async()->Attend(&context_, this);
    AddHold();
    StartRead(&response_);
    StartCall();
    Send(join);
    heartbeats_ = std::jthread([this] { SendHeartbeats(); });
    pthread_setname_np(heartbeats_.native_handle(), "heartbeats");
  }

  // Ends the stream and returns when OnDone has returned.
  void Stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (heartbeats_.joinable()) heartbeats_.join();
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) changed_.Wait(lock);
  }

  void Send(const v1::AttendRequest& request) { Push(request, /*last=*/false); }

  void Leave(const v1::Leave& leave) {
    v1::AttendRequest request;
    *request.mutable_leave() = leave;
    Push(request, /*last=*/true);
  }

  bool AwaitEnd(absl::Duration timeout) {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    MutexLock lock(mutex_);
    while (!done_) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitFor(lock, left);
    }
    return true;
  }

  void OnWriteDone(bool ok) override {
    bool next = false;
    bool half_close = false;
    bool release = false;
    {
      MutexLock lock(mutex_);
      outgoing_.pop_front();
      if (!ok) closed_ = true;
      next = !closed_ && !outgoing_.empty();
      writing_ = next;
      half_close = !closed_ && !next && no_more_;
      release = TakeHoldLocked();
    }
    if (next) StartWrite(&outgoing_front());
    if (half_close) StartWritesDone();
    if (release) RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      if (response_.has_welcome()) SetHeartbeat(HeartbeatOf(response_.welcome()));
      handlers_.on_response(response_);
      StartRead(&response_);
      return;
    }
    // The coordinator has ended the stream, or the connection is gone.
    bool release = false;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      release = TakeHoldLocked();
    }
    if (release) RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    handlers_.on_done(FromGrpcStatus(status));
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  void Push(const v1::AttendRequest& request, bool last) {
    bool start = false;
    {
      MutexLock lock(mutex_);
      if (closed_ || no_more_) return;
      outgoing_.push_back(request);
      no_more_ = last;
      start = !writing_;
      writing_ = true;
    }
    if (start) StartWrite(&outgoing_front());
  }

  // Stays where it is while it is written, since a deque keeps its elements in place and only
  // OnWriteDone takes one away.
  const v1::AttendRequest& outgoing_front() {
    MutexLock lock(mutex_);
    return outgoing_.front();
  }

  bool TakeHoldLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!closed_ || writing_ || !held_) return false;
    held_ = false;
    return true;
  }

  void SetHeartbeat(absl::Duration period) {
    MutexLock lock(mutex_);
    heartbeat_ = period;
    changed_.NotifyAll();
  }

  // A heartbeat is left out while an earlier message has not gone out: none is worth a queue.
  void SendHeartbeats() {
    for (;;) {
      bool idle = false;
      {
        MutexLock lock(mutex_);
        while (heartbeat_ == absl::ZeroDuration() && !stopping_) changed_.Wait(lock);
        const absl::Time due = Clock::Real()->Now() + heartbeat_;
        while (!stopping_) {
          const absl::Duration left = due - Clock::Real()->Now();
          if (left <= absl::ZeroDuration()) break;
          changed_.WaitFor(lock, left);
        }
        if (closed_ || stopping_) return;
        idle = !writing_;
      }
      if (!idle) continue;
      v1::AttendRequest request;
      v1::Heartbeat& heartbeat = *request.mutable_heartbeat();
      if (handlers_.on_heartbeat) handlers_.on_heartbeat(heartbeat);
      Send(request);
    }
  }

  const Handlers handlers_;
  const std::unique_ptr<v1::MembershipService::Stub> stub_;
  grpc::ClientContext context_;
  v1::AttendResponse response_;  // of the read under way

  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::AttendRequest> outgoing_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool no_more_ ABSL_GUARDED_BY(mutex_) = false;  // Leave is the last message
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;   // nothing can be sent any more
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();  // 0: no Welcome yet

  std::jthread heartbeats_;
};

AttendClient::AttendClient(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

AttendClient::~AttendClient() { stream_->Stop(); }

std::unique_ptr<AttendClient> AttendClient::Start(Options options, const v1::AttendRequest& join,
                                                  Handlers handlers) {
  auto stream = std::make_unique<Stream>(options, std::move(handlers));
  stream->Start(join);
  return std::unique_ptr<AttendClient>(new AttendClient(std::move(stream)));
}

void AttendClient::Send(const v1::AttendRequest& request) { stream_->Send(request); }

void AttendClient::Leave(const v1::Leave& leave) { stream_->Leave(leave); }

bool AttendClient::AwaitEnd(absl::Duration timeout) { return stream_->AwaitEnd(timeout); }

}  // namespace tessera
