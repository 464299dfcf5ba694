#include "client/step_memory.h"

#include <algorithm>

#include "common/dtype.h"

namespace tessera {
namespace {

using Point = StepMemory::Point;
using Phase = StepMemory::Phase;

int64_t SumOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  int64_t sum = 0;
  for (const v1::Slot& slot : slots) sum += slot.bytes();
  return sum;
}

class StepWalk {
 public:
  StepWalk(const v1::Plan& plan, const v1::Layout& layout) : plan_(plan), layout_(layout) {
    for (int i = 0; i < plan.units_size(); ++i) {
      bytes_.push_back(layout.units(i).padded_numel() * DTypeBytes(plan.units(i).param_dtype()));
      all_bytes_ += bytes_[i];
      if (Trainable(i)) all_gradient_bytes_ += bytes_[i];
      position_.push_back(bytes_[i] > 0 ? static_cast<int64_t>(order_.size()) : -1);
      if (bytes_[i] == 0) continue;
      order_.push_back(i);
      const Sum& last = sums_.back();
      sums_.push_back({last.all + bytes_[i], last.kept + (Keeps(i) ? bytes_[i] : 0)});
    }
    const auto for_ever = [](const v1::Slot& slot) { return slot.has_unit(); };
    accumulates_ =
        std::any_of(layout.gradient_slots().begin(), layout.gradient_slots().end(), for_ever);
    always_whole_ =
        layout.unshard_mode() == v1::RESIDENT || layout.sharding_strategy() == v1::NO_SHARD;
  }

  std::vector<Point> Points() const {
    std::vector<Point> points;
    int64_t kept = 0;  // units of earlier forwards that stay whole
    for (size_t at = 0; at < order_.size(); ++at) {
      const int unit = order_[at];
      points.push_back({Phase::kForward, unit, kept + LiveBytes(at, /*step=*/1, /*keeps=*/false),
                        accumulates_ ? all_gradient_bytes_ : 0});
      if (Keeps(unit)) kept += bytes_[unit];
    }
    for (size_t at = order_.size(); at-- > 0;) {
      const int unit = order_[at];
      // What stays whole comes before the unit in the plan's order, or around it.
      if (Keeps(unit)) kept -= bytes_[unit];
      points.push_back({Phase::kBackward, unit, kept + LiveBytes(at, /*step=*/-1, /*keeps=*/true),
                        GradientBytes(at)});
    }
    points.push_back({Phase::kOptimizer, -1, always_whole_ ? all_bytes_ : 0, 0});
    if (always_whole_) {
      for (Point& point : points) point.unsharded_bytes = all_bytes_;
    }
    return points;
  }

 private:
  bool Trainable(int unit) const {
    const auto& parameters = plan_.units(unit).parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [](const v1::UnitParameter& p) { return p.requires_grad(); });
  }

  // Whether the unit stays whole from its forward to its backward. The root is counted with the
  // units it encloses.
  bool Keeps(int unit) const {
    if (!plan_.units(unit).has_enclosing_unit()) return false;
    const v1::WrapConfig& own = plan_.units(unit).overrides();
    if (own.has_strategy()) {
      return own.strategy() == "shard_grad_op" || own.strategy() == "hybrid_shard_zero2";
    }
    return layout_.sharding_strategy() == v1::SHARD_GRAD_OP ||
           layout_.sharding_strategy() == v1::HYBRID_SHARD_ZERO2;
  }

  // The unit, those around it, and those that are gathered ahead; `keeps`: of the latter not what
  // is whole already since its forward.
  int64_t LiveBytes(size_t at, int step, bool keeps) const {
    const int unit = order_[at];
    const auto units = static_cast<int64_t>(order_.size());
    const int64_t near = static_cast<int64_t>(at) + (step > 0 ? 1 : -layout_.prefetch());
    const int64_t begin = std::clamp<int64_t>(near, 0, units);
    const int64_t end = std::clamp<int64_t>(near + layout_.prefetch(), begin, units);
    int64_t live = bytes_[unit] + sums_[end].all - sums_[begin].all;
    if (keeps) live -= sums_[end].kept - sums_[begin].kept;
    for (int outer = unit; plan_.units(outer).has_enclosing_unit();) {
      outer = plan_.units(outer).enclosing_unit();
      // Already among those ahead?
      const bool counted =
          begin <= position_[outer] && position_[outer] < end && !(keeps && Keeps(outer));
      if (!counted) live += bytes_[outer];
    }
    return live;
  }

  int64_t GradientBytes(size_t at) const {
    if (accumulates_) return all_gradient_bytes_;
    const auto gradient = [&](int unit) { return Trainable(unit) ? bytes_[unit] : 0; };
    const int unit = order_[at];
    const int before = at + 1 < order_.size() ? order_[at + 1] : -1;  // whose backward was before
    int64_t live = gradient(unit) + (before == -1 ? 0 : gradient(before));
    for (int outer = unit; plan_.units(outer).has_enclosing_unit();) {
      outer = plan_.units(outer).enclosing_unit();
      if (outer != before) live += gradient(outer);
    }
    return live;
  }

  const v1::Plan& plan_;
  const v1::Layout& layout_;
  std::vector<int64_t> bytes_;
  std::vector<int> order_;         // units with elements
  std::vector<int64_t> position_;  // of each unit in order_; -1 where it is not there
  struct Sum {
    int64_t all = 0;
    int64_t kept = 0;  // of units that Keeps() is true for
  };
  std::vector<Sum> sums_ = {Sum()};  // bytes of order_[0 .. i)
  int64_t all_bytes_ = 0;
  int64_t all_gradient_bytes_ = 0;
  bool accumulates_ = false;
  bool always_whole_ = false;
};

// The largest point of each of at most `max_points` runs of equal length.
std::vector<Point> Thinned(const std::vector<Point>& points, size_t max_points) {
  if (points.size() <= max_points) return points;
  std::vector<Point> kept;
  for (size_t run = 0; run < max_points; ++run) {
    const auto begin = points.begin() + static_cast<int64_t>(run * points.size() / max_points);
    const auto end = points.begin() + static_cast<int64_t>((run + 1) * points.size() / max_points);
    kept.push_back(*std::max_element(
        begin, end, [](const Point& a, const Point& b) { return a.total() < b.total(); }));
  }
  return kept;
}

}  // namespace

StepMemory MakeStepMemory(const v1::Plan& plan, const v1::Layout& layout,
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
                         memory.reduced_gradient_bytes - memory.optimizer_bytes;
  }
  memory.planned_unsharded_bytes = SumOf(layout.unsharded_slots());
  memory.planned_gradient_bytes = SumOf(layout.gradient_slots());
  std::vector<Point> points = StepWalk(plan, layout).Points();
  for (Point& point : points) {
    point.unsharded_bytes = std::min(point.unsharded_bytes, memory.planned_unsharded_bytes);
    point.gradient_bytes = std::min(point.gradient_bytes, memory.planned_gradient_bytes);
  }
  memory.points = Thinned(points, static_cast<size_t>(std::max(max_points, 3)));
  return memory;
}

}  // namespace tessera
