// The coordinator's process and the network to it: streams that break, calls that are lost or act
// twice, hosts that are cut off, a process that stands still or ends and is started again.
//
//   Server server(&base, options);
//   server.Start();
//   auto stream = server.Open("h1", view, first, {.message = ..., .end = ...});
//   stream->Send(heartbeat);
//   server.Call<v1::Job>("", [&](Facade& to) { return to.CreateJob(request); }, done);
//
// Each stream keeps its order; nothing else does.
#ifndef TESSERA_TESTS_SIMULATION_SERVER_H_
#define TESSERA_TESTS_SIMULATION_SERVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/coordinator.h"
#include "coordinator/fake_state_store.h"
#include "tests/simulation/base.h"
#include "tests/simulation/facade.h"

namespace tessera::simulation {

class Server;

// A member's Attend stream, both ends of it.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  struct Handler {
    std::function<void(const v1::AttendResponse&)> message;
    std::function<void(const absl::Status&)> end;
  };
  Stream(Server* server, std::shared_ptr<MemberView> view, Handler handler);

  // The member's end.
  void Send(v1::AttendRequest message);
  // The member goes without a word; it hears nothing any more.
  void Drop();
  bool open() const { return client_open_; }

  // The network's: it breaks, and each end learns of it in its own time.
  void Break();
  // The coordinator's process has ended.
  void ServerGone();
  const MemberView& view() const { return *view_; }

 private:
  friend class Server;
  class Sink;
  using ToServer = std::variant<v1::AttendRequest, absl::Status>;
  using ToClient = std::variant<v1::AttendResponse, absl::Status>;

  void QueueToServer(ToServer item, absl::Duration delay);
  void QueueToClient(ToClient item, absl::Duration delay);
  void DeliverToServer();
  void DeliverToClient();
  void AtServer(const v1::AttendRequest& message);
  void ServerOver();

  Server* server_;
  std::shared_ptr<MemberView> view_;
  Handler handler_;
  int64_t epoch_;  // of the process that it leads to
  bool client_open_ = true;
  bool server_open_ = true;
  bool joined_ = false;  // a join was asked for
  MemberId member_ = 0;
  std::deque<ToServer> to_server_;
  std::deque<ToClient> to_client_;
  absl::Time last_to_server_;
  absl::Time last_to_client_;
};

class Server {
 public:
  struct Options {
    Coordinator::Options coordinator;
    std::function<std::unique_ptr<Facade>(Coordinator*)> make_facade;
    absl::Duration least_delay = absl::Microseconds(100);
    absl::Duration most_delay = absl::Milliseconds(5);
    int64_t lost_calls_percent = 0;  // in each direction
    bool keeps_state = false;
    // With its end go the changes that were not durable; and all others, where a test wants that.
    bool loses_power = false;
    bool loses_all = false;
  };
  Server(Base* base, Options options);

  // Takes up what the store kept. An error: as Coordinator::Restore, and it is not up.
  absl::Status Start();
  // The process ends and takes its state with it; streams break.
  void Crash();
  // The disk is full, or is not any more.
  void FillDisk(bool full);
  bool up() const { return coordinator_ != nullptr; }
  // It stands still: nothing is read, and no tick.
  void Pause(absl::Duration time);
  // The host's packets are held back until then.
  void CutOff(const std::string& host, absl::Duration time);
  absl::Time CutOffUntil(const std::string& host) const;
  // Breaks one of the host's streams that are open, if there are any.
  void BreakAStreamOf(const std::string& host);
  void StopFaults();

  std::shared_ptr<Stream> Open(const std::string& host, std::shared_ptr<MemberView> view,
                               v1::AttendRequest first, Stream::Handler handler);

  // A unary call; `host` "": an operator's, who is never cut off. `done` comes once, maybe with
  // UNAVAILABLE though the call acted, or acts later.
  template <typename T>
  void Call(const std::string& host, std::function<absl::StatusOr<T>(Facade&)> act,
            std::function<void(absl::StatusOr<T>)> done);

  Facade* facade() { return facade_.get(); }
  FakeStateStore& store() { return store_; }
  int64_t live_sinks() const { return *live_sinks_; }
  // Streams that the coordinator has to know.
  int64_t open_streams();
  Options& options() { return options_; }

 private:
  friend class Stream;
  void TickLater(int64_t epoch);
  absl::Duration Delay() { return base_->random.Delay(options_.least_delay, options_.most_delay); }
  // Until when nothing gets from or to the host, as far as it is known now.
  absl::Time HeldUntil(const std::string& host, bool to_server) const;

  Base* base_;
  Options options_;
  std::shared_ptr<int64_t> live_sinks_ = std::make_shared<int64_t>(0);
  int64_t epoch_ = 0;
  FakeStateStore store_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Facade> facade_;
  absl::Time paused_until_ = absl::InfinitePast();
  std::map<std::string, absl::Time> cut_off_;
  std::vector<std::weak_ptr<Stream>> streams_;
};

template <typename T>
void Server::Call(const std::string& host, std::function<absl::StatusOr<T>(Facade&)> act,
                  std::function<void(absl::StatusOr<T>)> done) {
  const auto lost = [this, done](absl::Duration after) {
    base_->events.After(after, [done] { done(absl::UnavailableError("no answer")); });
  };
  const bool request_lost = base_->random.Percent(options_.lost_calls_percent);
  const bool answer_lost = base_->random.Percent(options_.lost_calls_percent);
  if (request_lost) return lost(absl::Milliseconds(500));
  const absl::Duration held =
      std::max(absl::ZeroDuration(), HeldUntil(host, true) - base_->events.now());
  // Its deadline; what is under way may still arrive.
  const bool late = answer_lost || held > absl::Seconds(1);
  if (late) lost(absl::Seconds(1));
  base_->events.After(held + Delay(), [this, act = std::move(act), done = std::move(done), late] {
    absl::StatusOr<T> answer = absl::UnavailableError("connection refused");
    if (up()) answer = act(*facade_);
    if (late) return;
    base_->events.After(Delay(), [done, answer = std::move(answer)] { done(answer); });
  });
}

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_SERVER_H_
