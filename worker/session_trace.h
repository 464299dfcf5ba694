// What a Session's calls say of where its rank is, and how long the program computes on each unit
// between them.
//
//   SessionTrace::Call call(trace, v1::WORKING, unit, v1::UNSHARD);
//   absl::StatusOr<UnitLease> lease = ...;
//   if (lease.ok()) call.Computes(unit, v1::FORWARD);
//
// The program's time on a unit is what passes outside of the Session's calls from the call after
// which it computes on the unit until the next that ends this: another Unshard, Reduce, EndStep and
// so on, but no GradientView. It is recorded as one FORWARD or BACKWARD.
//
// Thread-safety: none; the thread that calls the Session.
#ifndef TESSERA_WORKER_SESSION_TRACE_H_
#define TESSERA_WORKER_SESSION_TRACE_H_

#include <chrono>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "worker/position.h"
#include "worker/stats_recorder.h"

namespace tessera {

class SessionTrace {
 public:
  // `position` may be null. Both outlive the trace.
  SessionTrace(PositionPublisher* position, StatsRecorder* stats)
      : position_(position), stats_(stats) {}

  void SetStep(int64_t step) {
    if (position_ != nullptr) position_->SetStep(step);
  }
  // Within a call: what it does now.
  void Does(v1::Activity activity, int unit, v1::Operation operation, absl::string_view what = "") {
    if (position_ != nullptr) position_->Set(activity, unit, operation, what);
  }

  // The rank has left its generation: what it says now is not of that any more.
  void Rejoins() {
    if (position_ != nullptr) position_->Thaw();
    Does(v1::REJOINING, -1, v1::OPERATION_UNSPECIFIED);
  }

  // A call of the Session, from its beginning to its end. Calls may contain others; the outermost
  // counts.
  class Call {
   public:
    Call(SessionTrace& trace, v1::Activity activity, int unit, v1::Operation operation,
         absl::string_view what = "");
    Call(SessionTrace& trace, v1::Activity activity, absl::string_view what)
        : Call(trace, activity, -1, v1::OPERATION_UNSPECIFIED, what) {}
    // One that is part of the program's work on its unit.
    explicit Call(SessionTrace& trace);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // After it the program computes on the unit; else on none. record: the time counts.
    void Computes(int unit, v1::Operation operation, bool record = true);

   private:
    SessionTrace& trace_;
    const bool outermost_;
  };

 private:
  using Clock = std::chrono::steady_clock;

  void Begin();
  void EndWork();

  PositionPublisher* const position_;
  StatsRecorder* const stats_;
  int depth_ = 0;
  // What the program computes on; -1: no unit.
  int unit_ = -1;
  v1::Operation operation_ = v1::OPERATION_UNSPECIFIED;
  bool record_ = false;
  double worked_us_ = 0;    // on the unit so far
  Clock::time_point left_;  // when the last call ended
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SESSION_TRACE_H_
