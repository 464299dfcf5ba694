// A watch: one stream after the other, as if it were one.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client_impl.h"

namespace tessera {
namespace {

// A watch that has lasted for so long is opened again: a deadline even where a peer vanished
// without a word.
constexpr absl::Duration kWatchDeadline = absl::Minutes(10);
// Between attempts to go on with a watch.
constexpr absl::Duration kMaxWatchPause = absl::Seconds(2);
// A stream that brought no event has held if it was open for so long.
constexpr absl::Duration kHeld = absl::Seconds(1);

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::SUCCEEDED || job.state() == v1::FAILED || job.state() == v1::CANCELLED;
}

// Whether a watch that ended so can go on. A stream that ends well before the job does is a
// coordinator that is shutting down; proxies and resets show themselves as the last three.
bool CanResume(const absl::Status& status, bool transport) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
      return transport;
    default:
      return false;
  }
}

}  // namespace

struct Client::Impl::WatchState {
  v1::WatchJobRequest request;  // with the token of the last event
  v1::Job job;                  // as last seen
  bool known = false;           // the coordinator has answered once
  bool told = false;            // that the stream is broken
  // Since when no stream has held.
  absl::Time lost = absl::InfiniteFuture();
};

struct Client::Impl::StreamEnd {
  absl::Status status;
  bool transport = false;
  bool held = false;
};

Client::Impl::StreamEnd Client::Impl::WatchOnce(const WatchHandlers& handlers, WatchState& watch) {
  StreamEnd end;
  absl::Time opened = absl::InfiniteFuture();
  end.status = Attempt(
      [&](const Connection& connection, grpc::ClientContext& context) {
        auto reader = connection.jobs->WatchJob(&context, watch.request);
        v1::WatchJobResponse event;
        while (reader->Read(&event)) {
          opened = std::min(opened, options_.clock->Now());
          watch.known = true;
          if (std::exchange(watch.told, false) && handlers.on_resumed) handlers.on_resumed();
          // Without one it says that the stream is open.
          if (event.event_case() == v1::WatchJobResponse::EVENT_NOT_SET) continue;
          end.held = true;
          watch.request.set_resume_token(event.resume_token());
          if (event.has_job()) watch.job = event.job();
          handlers.on_event(event);
        }
        const grpc::Status status = reader->Finish();
        end.transport = IsTransport(status);
        return status;
      },
      kWatchDeadline, /*interruptible=*/true);
  end.held = end.held || options_.clock->Now() - opened >= kHeld;
  return end;
}

absl::StatusOr<v1::Job> Client::Impl::Watch(const std::string& name,
                                            const WatchHandlers& handlers) {
  WatchState watch;
  watch.request.set_name(name);
  absl::Duration pause = options_.first_pause;
  for (int attempt = 1;; ++attempt) {
    const StreamEnd end = WatchOnce(handlers, watch);
    if (HasEnded(watch.job)) return watch.job;
    if (stopped()) return Stopped();
    absl::Status why = end.status;
    if (!CanResume(why, end.transport)) return why;
    if (end.held) {
      watch.lost = absl::InfiniteFuture();
      pause = options_.first_pause;
      // Its own time is over: nothing is wrong.
      if (absl::IsDeadlineExceeded(why)) continue;
    }
    const absl::Time now = options_.clock->Now();
    watch.lost = std::min(watch.lost, now);
    if (why.ok()) {
      why = absl::UnavailableError(
          absl::StrCat("coordinator ", coordinator_, ": ended the watch before the job"));
    }
    // Until it has answered once, the address may be wrong.
    const bool give_up =
        watch.known ? now - watch.lost >= options_.watch_patience : attempt == kAttempts;
    if (give_up) return why;
    if (watch.known && !std::exchange(watch.told, true) && handlers.on_broken) {
      handlers.on_broken(why, options_.watch_patience);
    }
    if (!Pause(pause)) return Stopped();
    pause = std::min(2 * pause, kMaxWatchPause);
  }
}

}  // namespace tessera
