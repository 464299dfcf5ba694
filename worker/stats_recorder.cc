#include "worker/stats_recorder.h"

#include <algorithm>

namespace tessera {
namespace {

// The least of `sorted` that `percent` of them are not greater than.
float Percentile(const std::vector<float>& sorted, size_t percent) {
  return sorted[(percent * sorted.size() + 99) / 100 - 1];
}

}  // namespace

void StatsRecorder::Record(int unit, v1::Operation operation, double us, int64_t bytes) {
  Series& series = series_[unit * kOperations + operation];
  if (series.window.size() < kWindow) {
    series.window.push_back(static_cast<float>(us));
  } else {
    series.window[series.count % kWindow] = static_cast<float>(us);
  }
  ++series.count;
  series.bytes = bytes;
  series.total_us += us;
  series.changed = true;
}

std::vector<v1::OperationSample> StatsRecorder::TakeChanged() {
  std::vector<v1::OperationSample> samples;
  for (size_t i = 0; i < series_.size(); ++i) {
    Series& series = series_[i];
    if (!series.changed) continue;
    series.changed = false;
    std::vector<float> sorted = series.window;
    std::sort(sorted.begin(), sorted.end());
    v1::OperationSample& sample = samples.emplace_back();
    sample.set_unit(static_cast<int32_t>(i / kOperations));
    sample.set_operation(static_cast<v1::Operation>(i % kOperations));
    sample.set_count(series.count);
    sample.set_bytes(series.bytes);
    sample.set_median_us(sorted[sorted.size() / 2]);
    sample.set_total_us(series.total_us);
    sample.set_p90_us(Percentile(sorted, 90));
    sample.set_p99_us(Percentile(sorted, 99));
  }
  return samples;
}

}  // namespace tessera
