// Per-unit durations of one rank: count, total and, of the last 256 of each operation, the median
// and percentiles (nearest rank).
// Thread-safety: none.
#ifndef TESSERA_WORKER_STATS_RECORDER_H_
#define TESSERA_WORKER_STATS_RECORDER_H_

#include <cstdint>
#include <vector>

#include "tessera/v1/stats.pb.h"

namespace tessera {

class StatsRecorder {
 public:
  explicit StatsRecorder(int units) : series_(units * kOperations) {}

  // `bytes`: what one such operation of the unit moves.
  void Record(int unit, v1::Operation operation, double us, int64_t bytes);

  // The series that have changed since the last call.
  std::vector<v1::OperationSample> TakeChanged();

 private:
  static constexpr int kOperations = v1::Operation_MAX + 1;
  static constexpr int kWindow = 256;
  struct Series {
    std::vector<float> window;  // grows to kWindow, then a ring
    int64_t count = 0;
    int64_t bytes = 0;
    double total_us = 0;
    bool changed = false;
  };
  std::vector<Series> series_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_STATS_RECORDER_H_
