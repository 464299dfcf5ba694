#include "tests/simulation/server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {

// What the coordinator holds of a stream.
class Stream::Sink final : public MemberSink {
 public:
  Sink(std::shared_ptr<Stream> stream, std::shared_ptr<int64_t> count)
      : stream_(std::move(stream)), count_(std::move(count)) {
    ++*count_;
  }
  ~Sink() override { --*count_; }

  void Send(v1::AttendResponse message) override {
    Base& base = *stream_->server_->base_;
    base.checker.Sent(stream_->view_, message);
    base.trace.Add("coordinator to ", stream_->view_->incarnation, ": ", Short(message));
    stream_->QueueToClient(std::move(message), stream_->server_->Delay());
  }
  void Close(const absl::Status& status) override {
    stream_->view_->closed = true;
    stream_->server_->base_->checker.Over(stream_->view_);
    stream_->QueueToClient(status, stream_->server_->Delay());
    // The adapter's read fails after that.
    const std::shared_ptr<Stream> stream = stream_;
    stream_->server_->base_->events.After(stream_->server_->Delay(),
                                          [stream] { stream->ServerOver(); });
  }

  static std::string Short(const v1::AttendResponse& message) {
    if (!message.has_form_host()) return message.ShortDebugString();
    const v1::FormHost& form = message.form_host();
    return absl::StrCat("form_host ", form.job(), " generation ", form.generation(), ", ",
                        form.assignments_size(), " of ", form.layout().world_size(), " ranks from ",
                        form.assignments_size() > 0 ? form.assignments(0).rank() : -1,
                        form.recover() ? ", recover" : "", ", attempt ", form.attempt());
  }

 private:
  std::shared_ptr<Stream> stream_;
  std::shared_ptr<int64_t> count_;
};

Stream::Stream(Server* server, std::shared_ptr<MemberView> view, Handler handler)
    : server_(server),
      view_(std::move(view)),
      handler_(std::move(handler)),
      epoch_(server->epoch_) {}

void Stream::Send(v1::AttendRequest message) {
  if (client_open_) QueueToServer(std::move(message), server_->Delay());
}

void Stream::Drop() {
  if (!client_open_) return;
  client_open_ = false;
  handler_ = {};
  QueueToServer(absl::CancelledError("dropped"), server_->Delay());
}

void Stream::Break() {
  if (!client_open_) return;
  Random& random = server_->base_->random;
  // What is under way gets there in part.
  to_server_.resize(random.Between(0, static_cast<int64_t>(to_server_.size())));
  to_client_.resize(random.Between(0, static_cast<int64_t>(to_client_.size())));
  // One end may take long to see it.
  const auto seen = [&random] {
    return random.Delay(absl::ZeroDuration(),
                        random.Percent(80) ? absl::Milliseconds(50) : absl::Seconds(4));
  };
  QueueToServer(absl::UnavailableError("the connection broke"), seen());
  QueueToClient(absl::UnavailableError("the connection broke"), seen());
}

void Stream::ServerGone() {
  server_open_ = false;
  to_server_.clear();
  QueueToClient(absl::UnavailableError("the coordinator is gone"),
                server_->base_->random.Delay(absl::ZeroDuration(), absl::Milliseconds(100)));
}

void Stream::QueueToServer(ToServer item, absl::Duration delay) {
  const absl::Time now = server_->base_->events.now();
  last_to_server_ = std::max(last_to_server_, now + delay);
  to_server_.push_back(std::move(item));
  server_->base_->events.After(last_to_server_ - now,
                               [self = shared_from_this()] { self->DeliverToServer(); });
}

void Stream::QueueToClient(ToClient item, absl::Duration delay) {
  const absl::Time now = server_->base_->events.now();
  last_to_client_ = std::max(last_to_client_, now + delay);
  to_client_.push_back(std::move(item));
  server_->base_->events.After(last_to_client_ - now,
                               [self = shared_from_this()] { self->DeliverToClient(); });
}

void Stream::DeliverToServer() {
  if (to_server_.empty() || !server_open_ || epoch_ != server_->epoch_) return;
  const absl::Time now = server_->base_->events.now();
  const absl::Time held = server_->HeldUntil(view_->host, true);
  if (held > now) {
    server_->base_->events.After(held - now + absl::Microseconds(1),
                                 [self = shared_from_this()] { self->DeliverToServer(); });
    return;
  }
  const ToServer item = std::move(to_server_.front());
  to_server_.pop_front();
  if (std::holds_alternative<absl::Status>(item)) return ServerOver();
  AtServer(std::get<v1::AttendRequest>(item));
}

void Stream::AtServer(const v1::AttendRequest& message) {
  if (!message.has_heartbeat()) {
    server_->base_->trace.Add(view_->incarnation, " to coordinator: ", message.ShortDebugString());
  }
  absl::Status status;
  if (joined_) {
    status = server_->facade_->Receive(member_, message);
  } else {
    joined_ = true;
    const absl::StatusOr<MemberId> member = server_->facade_->Join(
        message, std::make_shared<Sink>(shared_from_this(), server_->live_sinks_));
    status = member.status();
    if (member.ok()) {
      member_ = *member;
      if (!view_->closed && !view_->ended) server_->base_->checker.Accepted(view_);
    }
  }
  if (status.ok()) return;
  server_->base_->trace.Add("coordinator refuses ", view_->incarnation, ": ", status.ToString());
  QueueToClient(status, server_->Delay());
  ServerOver();
}

void Stream::ServerOver() {
  if (!server_open_ || epoch_ != server_->epoch_) return;
  server_open_ = false;
  to_server_.clear();
  if (member_ != 0) {
    server_->base_->trace.Add("coordinator sees the stream of ", view_->incarnation, " end");
    server_->facade_->StreamBroken(member_);
  }
  server_->base_->checker.Over(view_);
}

void Stream::DeliverToClient() {
  if (to_client_.empty() || !client_open_) return;
  const absl::Time now = server_->base_->events.now();
  const absl::Time held = server_->HeldUntil(view_->host, false);
  if (held > now) {
    server_->base_->events.After(held - now + absl::Microseconds(1),
                                 [self = shared_from_this()] { self->DeliverToClient(); });
    return;
  }
  const ToClient item = std::move(to_client_.front());
  to_client_.pop_front();
  if (std::holds_alternative<v1::AttendResponse>(item)) {
    if (handler_.message != nullptr) handler_.message(std::get<v1::AttendResponse>(item));
    return;
  }
  client_open_ = false;
  const Handler handler = std::exchange(handler_, {});
  if (handler.end != nullptr) handler.end(std::get<absl::Status>(item));
}

Server::Server(Base* base, Options options) : base_(base), options_(std::move(options)) {
  options_.coordinator.clock = base_->events.clock();
}

absl::Status Server::Start() {
  ++epoch_;
  base_->trace.Add("the coordinator starts");
  if (options_.keeps_state) options_.coordinator.store = &store_;
  coordinator_ = std::make_unique<Coordinator>(options_.coordinator);
  if (absl::Status restored = coordinator_->Restore(); !restored.ok()) {
    coordinator_.reset();
    return restored;
  }
  facade_ = options_.make_facade == nullptr ? std::make_unique<Facade>(coordinator_.get())
                                            : options_.make_facade(coordinator_.get());
  TickLater(epoch_);
  return absl::OkStatus();
}

void Server::TickLater(int64_t epoch) {
  base_->events.After(absl::Milliseconds(100), [this, epoch] {
    if (epoch != epoch_ || !up()) return;
    if (base_->events.now() >= paused_until_) facade_->Tick();
    TickLater(epoch);
  });
}

void Server::Crash() {
  if (!up()) return;
  base_->trace.Add("the coordinator is killed");
  ++epoch_;
  facade_.reset();
  coordinator_.reset();
  if (options_.loses_power) store_.LosePower();
  if (options_.loses_all) {
    StateChange nothing;
    const absl::StatusOr<StoredState> kept = store_.Load();
    for (const auto& [id, job] : kept.ok() ? kept->jobs : decltype(kept->jobs)()) {
      nothing.erased_jobs.insert(id);
    }
    nothing.durable = true;
    (void)store_.Commit(nothing);
  }
  for (const std::weak_ptr<Stream>& weak : std::exchange(streams_, {})) {
    const std::shared_ptr<Stream> stream = weak.lock();
    if (stream == nullptr) continue;
    base_->checker.Over(stream->view_);
    stream->ServerGone();
  }
}

void Server::FillDisk(bool full) {
  base_->trace.Add(full ? "the disk is full" : "the disk has room again");
  store_.Fail(full ? absl::ResourceExhaustedError("the disk is full") : absl::OkStatus());
}

void Server::Pause(absl::Duration time) {
  base_->trace.Add("the coordinator stands still for ", absl::FormatDuration(time));
  paused_until_ = std::max(paused_until_, base_->events.now() + time);
}

void Server::CutOff(const std::string& host, absl::Duration time) {
  base_->trace.Add("host ", host, " is cut off for ", absl::FormatDuration(time));
  cut_off_[host] = std::max(cut_off_[host], base_->events.now() + time);
}

absl::Time Server::CutOffUntil(const std::string& host) const {
  const auto found = cut_off_.find(host);
  return found == cut_off_.end() ? absl::InfinitePast() : found->second;
}

void Server::StopFaults() {
  options_.lost_calls_percent = 0;
  cut_off_.clear();
  paused_until_ = absl::InfinitePast();
  store_.Fail(absl::OkStatus());
}

absl::Time Server::HeldUntil(const std::string& host, bool to_server) const {
  const absl::Time cut = CutOffUntil(host);
  return to_server ? std::max(cut, paused_until_) : cut;
}

void Server::BreakAStreamOf(const std::string& host) {
  std::vector<std::shared_ptr<Stream>> open;
  for (const std::weak_ptr<Stream>& weak : streams_) {
    std::shared_ptr<Stream> stream = weak.lock();
    if (stream != nullptr && stream->client_open_ && stream->view_->host == host) {
      open.push_back(std::move(stream));
    }
  }
  if (open.empty()) return;
  Stream& stream = *open[base_->random.Between(0, static_cast<int64_t>(open.size()) - 1)];
  base_->trace.Add("the stream of ", stream.view_->incarnation, " breaks");
  if (stream.view_->rank >= 0) {
    base_->checker.RankFault(stream.view_->job, stream.view_->rank);
  } else {
    base_->checker.HostFault(host);
  }
  stream.Break();
}

std::shared_ptr<Stream> Server::Open(const std::string& host, std::shared_ptr<MemberView> view,
                                     v1::AttendRequest first, Stream::Handler handler) {
  view->host = host;
  auto stream = std::make_shared<Stream>(this, std::move(view), std::move(handler));
  if (!up()) {
    stream->server_open_ = false;
    stream->QueueToClient(absl::UnavailableError("connection refused"), Delay());
    return stream;
  }
  if (streams_.size() > 64) {
    streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                  [](const auto& weak) { return weak.expired(); }),
                   streams_.end());
  }
  streams_.push_back(stream);
  stream->Send(std::move(first));
  return stream;
}

int64_t Server::open_streams() {
  int64_t open = 0;
  for (const std::weak_ptr<Stream>& weak : streams_) {
    const std::shared_ptr<Stream> stream = weak.lock();
    if (stream != nullptr && stream->server_open_ && stream->member_ != 0) ++open;
  }
  return open;
}

}  // namespace tessera::simulation
