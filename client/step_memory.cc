#include "client/step_memory.h"

#include <algorithm>

namespace tessera {
namespace {

int64_t SumOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  int64_t sum = 0;
  for (const v1::Slot& slot : slots) sum += slot.bytes();
  return sum;
}

// The largest point of each of at most `max_points` runs of equal length.
std::vector<StepPoint> Thinned(const std::vector<StepPoint>& points, size_t max_points) {
  if (points.size() <= max_points) return points;
  std::vector<StepPoint> kept;
  for (size_t run = 0; run < max_points; ++run) {
    const auto begin = points.begin() + static_cast<int64_t>(run * points.size() / max_points);
    const auto end = points.begin() + static_cast<int64_t>((run + 1) * points.size() / max_points);
    kept.push_back(*std::max_element(begin, end, [](const StepPoint& a, const StepPoint& b) {
      return LiveBytes(a) < LiveBytes(b);
    }));
  }
  return kept;
}

}  // namespace

int64_t GradientBytes(const StepPoint& point) {
  return point.gradient_bytes + point.staging_bytes + point.resharded_bytes;
}

int64_t LiveBytes(const StepPoint& point) {
  return point.unsharded_bytes + GradientBytes(point) + point.activation_bytes;
}

int64_t StepMemory::peak_bytes() const {
  int64_t peak = 0;
  for (const StepPoint& point : points) peak = std::max(peak, LiveBytes(point));
  return fixed_bytes() + peak;
}

StepMemory MakeStepMemory(const std::vector<StepPoint>& timeline, const v1::Layout& layout,
                          const v1::Forecast& forecast, int max_points) {
  StepMemory memory;
  const auto fullest = std::max_element(forecast.ranks().begin(), forecast.ranks().end(),
                                        [](const v1::RankForecast& a, const v1::RankForecast& b) {
                                          return a.private_total_bytes() < b.private_total_bytes();
                                        });
  if (fullest != forecast.ranks().end()) {
    memory.parameter_bytes = fullest->parameter_bytes();
    memory.reduced_gradient_bytes = fullest->gradient_bytes();
    memory.optimizer_bytes = fullest->optimizer_bytes();
    memory.other_bytes = fullest->private_total_bytes() - memory.parameter_bytes -
                         memory.reduced_gradient_bytes - memory.optimizer_bytes +
                         fullest->buffer_bytes() + fullest->unmanaged_bytes() +
                         fullest->unmanaged_gradient_bytes();
  }
  memory.planned_unsharded_bytes = SumOf(layout.unsharded_slots());
  memory.planned_gradient_bytes = SumOf(layout.gradient_slots()) +
                                  SumOf(layout.accumulation_slots()) +
                                  SumOf(layout.reshard_slots()) + layout.staging_bytes();
  memory.points = Thinned(timeline, static_cast<size_t>(std::max(max_points, 3)));
  return memory;
}

}  // namespace tessera
