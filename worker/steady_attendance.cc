#include "worker/steady_attendance.h"

#include <pthread.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/errors.h"
#include "common/mutex.h"

namespace tessera {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Whether it may only be the connection, or a coordinator that goes: what a coordinator has decided
// has a reason.
bool MayBeTriedAgain(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      return true;
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return Reason(status).empty() && Field(status).empty();
    default:
      return false;
  }
}

}  // namespace

class SteadyAttendance::Impl {
 public:
  Impl(AttendClient::Options options, Handlers handlers)
      : options_(std::move(options)), handlers_(std::move(handlers)) {
    thread_ = std::jthread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "attendance");
  }

  ~Impl() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  void Send(const v1::AttendRequest& request) {
    MutexLock lock(mutex_);
    if (left_.has_value()) return;
    if (stream_ != nullptr) {
      stream_->Send(request);
    } else if (opening_) {
      waiting_.push_back(request);
    }
  }

  void Leave(const v1::Leave& leave) {
    MutexLock lock(mutex_);
    if (left_.has_value()) return;
    left_ = leave;
    if (stream_ != nullptr) stream_->Leave(leave);
  }

  bool AwaitPresence(absl::Duration timeout) {
    const absl::Time deadline = Clock::Real()->Now() + timeout;
    MutexLock lock(mutex_);
    while (!present_ && !done_) {
      const absl::Duration left = deadline - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitFor(lock, left);
    }
    return true;
  }

  bool AwaitEnd(absl::Duration timeout, absl::Duration away) {
    absl::Duration left[2] = {away, timeout};  // by presence
    MutexLock lock(mutex_);
    while (!done_) {
      absl::Duration& mine = left[present_ ? 1 : 0];
      if (mine <= absl::ZeroDuration()) return false;
      const absl::Time since = Clock::Real()->Now();
      changed_.WaitFor(lock, mine);
      mine -= Clock::Real()->Now() - since;
    }
    return true;
  }

 private:
  // The life of the thread: one stream after the other.
  void Run() {
    absl::Duration pause = kFirstPause;
    for (bool again = false;; again = true) {
      Open(again);
      absl::Status status = AwaitStreamEnd();
      std::unique_ptr<AttendClient> ended;
      bool final = false;
      {
        MutexLock lock(mutex_);
        ended = std::move(stream_);
        if (std::exchange(present_, false)) pause = kFirstPause;
        // A Leave that the coordinator has taken ends the stream with OK.
        const bool taken = left_.has_value() && status.ok();
        final = stopping_ || last_heard_ || taken || !MayBeTriedAgain(status);
        if (stopping_) status = absl::CancelledError("the member was dropped");
      }
      ended.reset();
      if (final) return Done(status);
      if (handlers_.on_away) handlers_.on_away(status);
      if (!Pause(pause)) return Done(absl::CancelledError("the member was dropped"));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  void Open(bool again) {
    {
      MutexLock lock(mutex_);
      opening_ = true;
      ended_.reset();
    }
    const std::vector<v1::AttendRequest> opening = handlers_.opening(again);
    AttendClient::Options options = options_;
    // A coordinator that is not there is then waited for by the stream itself.
    options.wait_for_ready = options.wait_for_ready || again;
    std::unique_ptr<AttendClient> stream = AttendClient::Start(
        options, opening.front(),
        {.on_response = [this](const v1::AttendResponse& response) { OnResponse(response); },
         .on_done = [this](const absl::Status& status) { OnStreamDone(status); },
         .on_heartbeat = handlers_.on_heartbeat});
    for (size_t i = 1; i < opening.size(); ++i) stream->Send(opening[i]);
    MutexLock lock(mutex_);
    for (const v1::AttendRequest& request : std::exchange(waiting_, {})) stream->Send(request);
    if (left_.has_value()) stream->Leave(*left_);
    stream_ = std::move(stream);
    opening_ = false;
  }

  void OnResponse(const v1::AttendResponse& response) {
    if (response.has_welcome()) {
      MutexLock lock(mutex_);
      present_ = true;
      changed_.NotifyAll();
    }
    if (handlers_.on_response(response)) return;
    MutexLock lock(mutex_);
    last_heard_ = true;
  }

  void OnStreamDone(const absl::Status& status) {
    MutexLock lock(mutex_);
    ended_ = status;
    changed_.NotifyAll();
  }

  absl::Status AwaitStreamEnd() {
    MutexLock lock(mutex_);
    while (!ended_.has_value() && !stopping_) changed_.Wait(lock);
    return ended_.value_or(absl::CancelledError());
  }

  // False: it is to stop.
  bool Pause(absl::Duration pause) {
    const absl::Time until = Clock::Real()->Now() + pause;
    MutexLock lock(mutex_);
    while (!stopping_) {
      const absl::Duration left = until - Clock::Real()->Now();
      if (left <= absl::ZeroDuration()) return true;
      changed_.WaitFor(lock, left);
    }
    return false;
  }

  void Done(const absl::Status& status) {
    handlers_.on_done(status);
    MutexLock lock(mutex_);
    done_ = true;
    changed_.NotifyAll();
  }

  const AttendClient::Options options_;
  const Handlers handlers_;

  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<AttendClient> stream_ ABSL_GUARDED_BY(mutex_);  // null: between two
  bool opening_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<v1::AttendRequest> waiting_ ABSL_GUARDED_BY(mutex_);  // for the one that is opened
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mutex_);       // the stream, and how
  std::optional<v1::Leave> left_ ABSL_GUARDED_BY(mutex_);
  bool present_ ABSL_GUARDED_BY(mutex_) = false;  // this stream was welcomed
  bool last_heard_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

SteadyAttendance::SteadyAttendance(AttendClient::Options options, Handlers handlers)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handlers))) {}

SteadyAttendance::~SteadyAttendance() = default;

void SteadyAttendance::Send(const v1::AttendRequest& request) { impl_->Send(request); }

void SteadyAttendance::Leave(const v1::Leave& leave) { impl_->Leave(leave); }

bool SteadyAttendance::AwaitPresence(absl::Duration timeout) {
  return impl_->AwaitPresence(timeout);
}

bool SteadyAttendance::AwaitEnd(absl::Duration timeout, absl::Duration away) {
  return impl_->AwaitEnd(timeout, away);
}

}  // namespace tessera
