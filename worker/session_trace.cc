#include "worker/session_trace.h"

namespace tessera {

void SessionTrace::Begin() {
  if (unit_ < 0) return;
  worked_us_ += std::chrono::duration<double, std::micro>(Clock::now() - left_).count();
}

void SessionTrace::EndWork() {
  if (unit_ >= 0 && record_) stats_->Record(unit_, operation_, worked_us_, 0);
  unit_ = -1;
  operation_ = v1::OPERATION_UNSPECIFIED;
  worked_us_ = 0;
}

SessionTrace::Call::Call(SessionTrace& trace, v1::Activity activity, int unit,
                         v1::Operation operation, absl::string_view what)
    : trace_(trace), outermost_(trace.depth_++ == 0) {
  if (!outermost_) return;
  trace_.Begin();
  trace_.EndWork();
  trace_.Does(activity, unit, operation, what);
}

SessionTrace::Call::Call(SessionTrace& trace) : trace_(trace), outermost_(trace.depth_++ == 0) {
  if (outermost_) trace_.Begin();
}

SessionTrace::Call::~Call() {
  --trace_.depth_;
  if (!outermost_) return;
  trace_.left_ = Clock::now();
  trace_.Does(v1::COMPUTING, trace_.unit_, trace_.operation_);
}

void SessionTrace::Call::Computes(int unit, v1::Operation operation, bool record) {
  if (!outermost_) return;
  trace_.unit_ = unit;
  trace_.operation_ = operation;
  trace_.record_ = record;
}

}  // namespace tessera
