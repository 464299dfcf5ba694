#include "worker/report_buffer.h"

#include <algorithm>

namespace tessera {

void ReportBuffer::Keep(v1::ReportStatsRequest report) {
  for (v1::OperationSample& sample : *report.mutable_samples()) {
    const std::pair<int32_t, int> key(sample.unit(), sample.operation());
    samples_[key] = std::move(sample);
  }
  for (v1::Progress& line : *report.mutable_progress()) progress_.push_back(std::move(line));
  while (progress_.size() > kMaxProgressLines) progress_.pop_front();
  report.clear_samples();
  report.clear_progress();
  // A figure that a report does not have is unchanged.
  if (report.measured_bytes() == 0) report.set_measured_bytes(head_.measured_bytes());
  report.set_step(std::max(report.step(), head_.step()));
  head_ = std::move(report);
  empty_ = false;
}

void ReportBuffer::Add(v1::ReportStatsRequest report) { Keep(std::move(report)); }

v1::ReportStatsRequest ReportBuffer::Take() {
  v1::ReportStatsRequest report = std::move(head_);
  for (auto& [key, sample] : samples_) *report.add_samples() = std::move(sample);
  for (v1::Progress& line : progress_) *report.add_progress() = std::move(line);
  *this = ReportBuffer();
  return report;
}

void ReportBuffer::PutBack(v1::ReportStatsRequest report) {
  if (empty_) {
    Keep(std::move(report));
    return;
  }
  v1::ReportStatsRequest newer = Take();
  Keep(std::move(report));
  Keep(std::move(newer));
}

}  // namespace tessera
