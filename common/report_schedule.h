// When a rank reports what it has measured. In a large job each does so more seldom, and not all at
// once, so that the coordinator gets as many samples a second from any job.
//
//   ReportSchedule reports(/*world_size=*/4, /*units=*/6, /*rank=*/1);
//   if (reports.Begin(clock.Now(), /*important=*/false)) {
//     ... report the step; samples too if reports.with_samples() ...
//   }
//
// Thread-safety: none.
#ifndef TESSERA_COMMON_REPORT_SCHEDULE_H_
#define TESSERA_COMMON_REPORT_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace tessera {

class ReportSchedule {
 public:
  // Often enough for people who watch, seldom enough to cost nothing.
  static constexpr absl::Duration kLeast = absl::Milliseconds(500);
  // Of all ranks together.
  static constexpr int64_t kSamplesPerSecond = 50'000;
  // Of a unit and rank: unshard, reduce, optimizer, forward, backward.
  static constexpr int64_t kSamplesOfUnit = 5;

  // Between two reports of one rank that have samples.
  static absl::Duration Period(int64_t world_size, int64_t units) {
    return std::max(kLeast, absl::Seconds(world_size * units * kSamplesOfUnit) / kSamplesPerSecond);
  }

  ReportSchedule(int64_t world_size, int64_t units, int64_t rank)
      : period_(Period(world_size, units)),
        offset_(period_ * rank / std::max<int64_t>(1, world_size)),
        leads_(rank == 0) {}

  // Whether to report at `now`. `important`: a first or last step, or a line of progress; then
  // rank 0 reports in any case, and in a small job every rank.
  bool Begin(absl::Time now, bool important) {
    const bool small = period_ == kLeast;
    if (last_samples_ == absl::InfinitePast() && !small) last_samples_ = now - offset_;
    with_samples_ = now - last_samples_ >= period_ || (important && (leads_ || small));
    const bool report = with_samples_ || (leads_ && (important || now - last_report_ >= kLeast));
    if (with_samples_) last_samples_ = now;
    if (report) last_report_ = now;
    return report;
  }
  // Of the report that Begin allowed last.
  bool with_samples() const { return with_samples_; }
  // As new: what was sent may not have come.
  void Restart() { last_report_ = last_samples_ = absl::InfinitePast(); }

 private:
  const absl::Duration period_;
  const absl::Duration offset_;  // so that ranks take turns
  const bool leads_;             // its reports say where the job is
  bool with_samples_ = false;
  absl::Time last_report_ = absl::InfinitePast();
  absl::Time last_samples_ = absl::InfinitePast();
};

}  // namespace tessera

#endif  // TESSERA_COMMON_REPORT_SCHEDULE_H_
