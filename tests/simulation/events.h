// Simulated time: what is to happen, in order of when, and what did.
//
//   Events events;
//   events.After(absl::Seconds(1), [] { ... });
//   events.RunUntil(events.now() + absl::Seconds(5));
//
// What falls on the same moment happens in the order in which it was asked for, so a history is the
// same each time. Not thread-safe.
#ifndef TESSERA_TESTS_SIMULATION_EVENTS_H_
#define TESSERA_TESTS_SIMULATION_EVENTS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/simulated_clock.h"

namespace tessera::simulation {

class Events {
 public:
  using Action = std::function<void()>;

  Events() : now_(clock_.Now()), start_(now_) {}

  const Clock* clock() const { return &clock_; }
  absl::Time now() const { return now_; }
  absl::Duration passed() const { return now_ - start_; }

  void After(absl::Duration delay, Action action) {
    queue_.push_back({now_ + std::max(delay, absl::ZeroDuration()), ++last_, std::move(action)});
    std::push_heap(queue_.begin(), queue_.end(), Later);
  }

  // Ends early once `done` says so.
  void RunUntil(absl::Time end, const std::function<bool()>& done = nullptr) {
    while (!queue_.empty() && queue_.front().time <= end) {
      if (done != nullptr && done()) return;
      std::pop_heap(queue_.begin(), queue_.end(), Later);
      Event event = std::move(queue_.back());
      queue_.pop_back();
      MoveTo(event.time);
      event.action();
    }
    if (done == nullptr || !done()) MoveTo(end);
  }

 private:
  struct Event {
    absl::Time time;
    int64_t number = 0;
    Action action;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }
  void MoveTo(absl::Time time) {
    clock_.Advance(time - now_);
    now_ = time;
  }

  SimulatedClock clock_;
  absl::Time now_;
  absl::Time start_;
  int64_t last_ = 0;
  std::vector<Event> queue_;  // a heap
};

// The last things that happened, for people. Off until somebody wants it: a history that failed is
// run again.
class Trace {
 public:
  explicit Trace(const Events* events) : events_(events) {}
  void Keep(size_t lines) { keep_ = lines; }

  template <typename... Parts>
  void Add(const Parts&... parts) {
    if (keep_ == 0) return;
    lines_.push_back(absl::StrCat(absl::FormatDuration(events_->passed()), " ", parts...));
    if (lines_.size() > keep_) lines_.pop_front();
  }
  std::string Text() const {
    std::string text;
    for (const std::string& line : lines_) absl::StrAppend(&text, line, "\n");
    return text;
  }

 private:
  const Events* events_;
  size_t keep_ = 0;
  std::deque<std::string> lines_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_EVENTS_H_
