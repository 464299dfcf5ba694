// What the ranks of one generation measured: for each unit, operation and rank the newest sample,
// summarised over ranks when asked. Its memory is units x operations x ranks and does not grow with
// time.
//
//   StatsStore stats(/*units=*/5, /*ranks=*/2);
//   TESSERA_RETURN_IF_ERROR(stats.Record(/*rank=*/1, samples));
//   for (const v1::OperationStats& operation : stats.Summarise(/*unit=*/0)) ...
//
// Not thread-safe; the facade locks.
#ifndef TESSERA_COORDINATOR_STATS_STORE_H_
#define TESSERA_COORDINATOR_STATS_STORE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/repeated_field.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

class StatsStore {
 public:
  StatsStore(int units, int ranks) : units_(units), ranks_(ranks), samples_(ranks) {}

  // All of the samples or, if one is wrong, none. INVALID_ARGUMENT: no such rank, unit or
  // operation, or a figure that is negative or not finite.
  absl::Status Record(int rank,
                      const google::protobuf::RepeatedPtrField<v1::OperationSample>& samples);

  // Minimum, median and maximum over ranks of each rank's median; for an even number of ranks the
  // median is the mean of the middle two. The slowest rank is the lowest of those with the maximum.
  // Percentiles: the greatest that a rank has.
  // Operations that no rank did are left out.
  std::vector<v1::OperationStats> Summarise(int unit) const;

 private:
  struct Sample {
    double median_us = 0;
    double p90_us = 0;
    double p99_us = 0;
    int64_t count = 0;  // 0: the rank has not sent one
  };

  size_t IndexOf(int unit, int operation) const {
    return static_cast<size_t>(unit) * kOperations + static_cast<size_t>(operation);
  }

  static constexpr int kOperations = v1::Operation_MAX + 1;
  const int units_;
  const int ranks_;
  // By rank, then by unit and operation: a report is written in one place. Empty: none came yet.
  std::vector<std::vector<Sample>> samples_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_STATS_STORE_H_
