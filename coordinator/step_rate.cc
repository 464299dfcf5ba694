#include "coordinator/step_rate.h"

namespace tessera {
namespace {

// Of the window.
constexpr int kMarks = 64;

}  // namespace

void StepRate::Add(int64_t steps, absl::Time now) {
  if (!marks_.empty() && (steps <= marks_.back().steps || now < marks_.back().time)) return;
  // The last mark moves on until it is far enough from the one before it.
  if (marks_.size() >= 2 && now - marks_[marks_.size() - 2].time < window_ / kMarks) {
    marks_.pop_back();
  }
  marks_.push_back({steps, now});
  // One mark at the beginning of the window or before it stays.
  while (marks_.size() > 2 && marks_[1].time <= now - window_) marks_.pop_front();
}

std::optional<absl::Duration> StepRate::TimeLeft(int64_t steps) const {
  if (marks_.size() < 2) return std::nullopt;
  const Mark& first = marks_.front();
  const Mark& last = marks_.back();
  if (last.time <= first.time || steps <= last.steps) return std::nullopt;
  return (last.time - first.time) *
         (static_cast<double>(steps - last.steps) / static_cast<double>(last.steps - first.steps));
}

}  // namespace tessera
