#include "coordinator/stats_store.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

bool IsDuration(double microseconds) { return std::isfinite(microseconds) && microseconds >= 0; }

absl::Status Check(const v1::OperationSample& sample, int units) {
  if (sample.unit() < 0 || sample.unit() >= units) {
    return InvalidField("samples.unit", absl::StrCat("is ", sample.unit(),
                                                     "; the layout has units 0 to ", units - 1));
  }
  if (sample.operation() == v1::OPERATION_UNSPECIFIED ||
      !v1::Operation_IsValid(sample.operation())) {
    return InvalidField(
        "samples.operation",
        absl::StrCat("is ", static_cast<int>(sample.operation()), ", which is unknown"));
  }
  if (sample.count() < 0 || sample.bytes() < 0 || !IsDuration(sample.median_us()) ||
      !IsDuration(sample.total_us()) || !IsDuration(sample.p90_us()) ||
      !IsDuration(sample.p99_us())) {
    return InvalidField("samples", absl::StrCat("unit ", sample.unit(),
                                                " has a figure that is negative or not finite"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StatsStore::Record(
    int rank, const google::protobuf::RepeatedPtrField<v1::OperationSample>& samples) {
  if (rank < 0 || rank >= ranks_) {
    return InvalidField("rank", absl::StrCat("is ", rank, "; the world size is ", ranks_));
  }
  for (const v1::OperationSample& sample : samples) TESSERA_RETURN_IF_ERROR(Check(sample, units_));
  std::vector<Sample>& of_rank = samples_[rank];
  if (!samples.empty()) of_rank.resize(IndexOf(units_, 0));
  for (const v1::OperationSample& sample : samples) {
    of_rank[IndexOf(sample.unit(), sample.operation())] = {sample.median_us(), sample.p90_us(),
                                                           sample.p99_us(), sample.count()};
  }
  return absl::OkStatus();
}

std::vector<v1::OperationStats> StatsStore::Summarise(int unit) const {
  std::vector<v1::OperationStats> summaries;
  if (unit < 0 || unit >= units_) return summaries;
  for (int operation = v1::OPERATION_UNSPECIFIED + 1; operation < kOperations; ++operation) {
    v1::OperationStats stats;
    std::vector<double> medians;
    double slowest = -1;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (samples_[rank].empty()) continue;
      const Sample& sample = samples_[rank][IndexOf(unit, operation)];
      if (sample.count == 0) continue;
      medians.push_back(sample.median_us);
      stats.set_count(std::max(stats.count(), sample.count));
      stats.set_p90_us(std::max(stats.p90_us(), sample.p90_us));
      stats.set_p99_us(std::max(stats.p99_us(), sample.p99_us));
      if (sample.median_us > slowest) {
        slowest = sample.median_us;
        stats.set_slowest_rank(rank);
      }
    }
    if (medians.empty()) continue;
    std::sort(medians.begin(), medians.end());
    const size_t half = medians.size() / 2;
    stats.set_operation(static_cast<v1::Operation>(operation));
    stats.set_min_us(medians.front());
    stats.set_median_us(medians.size() % 2 == 1 ? medians[half]
                                                : (medians[half - 1] + medians[half]) / 2);
    stats.set_max_us(medians.back());
    summaries.push_back(std::move(stats));
  }
  return summaries;
}

}  // namespace tessera
