// What every part of a simulation shares: time, chance, the record and the rules; and what a
// simulated process is.
#ifndef TESSERA_TESTS_SIMULATION_BASE_H_
#define TESSERA_TESTS_SIMULATION_BASE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/events.h"
#include "tests/simulation/random.h"

namespace tessera::simulation {

// Of a member that tries to reach the coordinator.
inline constexpr absl::Duration kLeastBackOff = absl::Milliseconds(100);
inline constexpr absl::Duration kMostBackOff = absl::Seconds(1);

struct Base {
  explicit Base(uint64_t seed) : random(seed) {}
  Events events;
  Random random;
  Trace trace{&events};
  Checker checker{[this] { return events.now(); }};
};

// Does nothing once it has died, and what it wanted to do while it was stopped when it goes on.
class Process : public std::enable_shared_from_this<Process> {
 public:
  explicit Process(Base* base) : base_(base) {}
  virtual ~Process() = default;

  bool alive() const { return alive_; }
  bool stopped() const { return stopped_; }
  // SIGSTOP and SIGCONT.
  void Stop() { stopped_ = true; }
  void Continue() {
    stopped_ = false;
    for (Events::Action& action : std::exchange(held_, {})) {
      base_->events.After(absl::ZeroDuration(), std::move(action));
    }
  }

  void Later(absl::Duration delay, Events::Action action) {
    base_->events.After(delay, Guarded(std::move(action)));
  }
  void Later(absl::Duration low, absl::Duration high, Events::Action action) {
    Later(base_->random.Delay(low, high), std::move(action));
  }
  // Of this process: nothing happens where it is dead by then.
  Events::Action Guarded(Events::Action action) {
    return [weak = weak_from_this(), action = std::move(action)]() mutable {
      const std::shared_ptr<Process> self = weak.lock();
      if (self == nullptr || !self->alive_) return;
      if (self->stopped_) {
        self->held_.push_back(self->Guarded(std::move(action)));
      } else {
        action();
      }
    };
  }

 protected:
  void Die() {
    alive_ = false;
    held_.clear();
  }
  Base* base() { return base_; }

 private:
  Base* base_;
  bool alive_ = true;
  bool stopped_ = false;
  std::vector<Events::Action> held_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_BASE_H_
