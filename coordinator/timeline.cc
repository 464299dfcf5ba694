#include "coordinator/timeline.h"

#include <algorithm>

#include "common/dtype.h"
#include "coordinator/layout.h"

namespace tessera {
namespace {

class Timeline {
 public:
  Timeline(const v1::Plan& plan, const v1::Layout& layout, const Activations& activations)
      : plan_(plan), layout_(layout), activations_(activations), units_(plan.units_size()) {
    std::vector<bool> has_place(units_, false);
    const auto place = [&](const v1::Slot& slot) {
      if (!slot.has_unit()) return;
      accumulated_ += slot.bytes();
      has_place[slot.unit()] = true;
    };
    for (const v1::Slot& slot : layout.gradient_slots()) place(slot);
    for (const v1::Slot& slot : layout.accumulation_slots()) accumulated_ += slot.bytes();
    takes_turns_.resize(units_);
    resharded_.assign(units_, 0);
    for (const v1::Slot& slot : layout.reshard_slots()) resharded_[slot.unit()] = slot.bytes();
    whole_before_.assign(units_ + 1, 0);
    kept_before_.assign(units_ + 1, 0);
    resharded_before_.assign(units_ + 1, 0);
    for (int i = 0; i < units_; ++i) {
      takes_turns_[i] = IsTrained(plan.units(i)) && !has_place[i];
      const int64_t kept = i < static_cast<int>(activations.kept.size()) ? activations.kept[i] : 0;
      whole_before_[i + 1] = whole_before_[i] + (StaysWhole(plan, layout, i) ? Bytes(i) : 0);
      kept_before_[i + 1] = kept_before_[i] + kept;
      resharded_before_[i + 1] = resharded_before_[i] + resharded_[i];
    }
  }

  std::vector<StepPoint> Make() {
    StepPoint resting;
    if (Resident()) resting.unsharded_bytes = whole_before_[units_];
    resting.activation_bytes = activations_.constant;
    points_.push_back(resting);
    for (int i = 0; i < units_; ++i) points_.push_back(Forward(i));
    const std::vector<int> first = FirstInside();
    for (int i = units_ - 1; i >= 0; --i) {
      points_.push_back(Backward(i));
      // A unit's gradients are complete when those of all units inside it are.
      for (int unit = i; unit >= 0;) {
        if (first[unit] == i && IsTrained(plan_.units(unit))) points_.push_back(Reduction(unit, i));
        const bool on = first[unit] == i && plan_.units(unit).has_enclosing_unit();
        unit = on ? plan_.units(unit).enclosing_unit() : -1;
      }
    }
    return std::move(points_);
  }

 private:
  bool Resident() const { return layout_.unshard_mode() == v1::RESIDENT; }

  int64_t Bytes(int unit) const {
    return layout_.units(unit).padded_numel() * DTypeBytes(plan_.units(unit).param_dtype());
  }

  // Of each unit, the first inside it: units inside one come before it without a gap.
  std::vector<int> FirstInside() const {
    std::vector<int> first(units_);
    for (int i = 0; i < units_; ++i) first[i] = i;
    for (int i = 0; i < units_; ++i) {
      if (!plan_.units(i).has_enclosing_unit()) continue;
      int& around = first[plan_.units(i).enclosing_unit()];
      around = std::min(around, first[i]);
    }
    return first;
  }

  // The unit and those around it.
  std::vector<int> Chain(int unit) const {
    std::vector<int> chain = {unit};
    while (plan_.units(chain.back()).has_enclosing_unit())
      chain.push_back(plan_.units(chain.back()).enclosing_unit());
    return chain;
  }

  // With `unit` at work and `step` +1 or -1 to the next: those of units 0 to `unit` that stay
  // whole, and what else is.
  int64_t Whole(int unit, int step) const {
    if (Resident()) return whole_before_[units_];
    std::vector<int> live = Chain(unit);
    for (int i = 1; i <= layout_.prefetch(); ++i) {
      const int next = unit + i * step;
      if (next < 0 || next >= units_) break;
      if (std::find(live.begin(), live.end(), next) == live.end()) live.push_back(next);
    }
    int64_t bytes = whole_before_[unit + 1];
    for (const int other : live) {
      if (other > unit || !StaysWhole(plan_, layout_, other)) bytes += Bytes(other);
    }
    return bytes;
  }

  // Of the units of `live`, each once, and what has accumulated.
  int64_t Gradients(std::vector<int> live) const {
    std::sort(live.begin(), live.end());
    live.erase(std::unique(live.begin(), live.end()), live.end());
    int64_t bytes = accumulated_;
    for (const int unit : live) bytes += takes_turns_[unit] ? Bytes(unit) : 0;
    return bytes;
  }

  StepPoint Forward(int unit) const {
    StepPoint point;
    point.phase = v1::PhaseForecast::FORWARD;
    point.unit = unit;
    point.unsharded_bytes = Whole(unit, +1);
    point.resharded_bytes = resharded_before_[unit + 1];
    point.activation_bytes = activations_.constant + kept_before_[unit + 1];
    return point;
  }

  StepPoint Backward(int unit) const {
    StepPoint point;
    point.phase = v1::PhaseForecast::BACKWARD;
    point.unit = unit;
    point.unsharded_bytes = Whole(unit, -1);
    point.gradient_bytes = Gradients(Chain(unit));
    point.resharded_bytes = resharded_before_[unit + 1];
    point.activation_bytes =
        activations_.constant + kept_before_[unit + 1] + activations_.recomputed;
    return point;
  }

  // `last` was the last at work, and the next is at work already.
  StepPoint Reduction(int unit, int last) const {
    const int next = std::max(last - 1, 0);
    StepPoint point = Backward(next);
    point.phase = v1::PhaseForecast::REDUCTION;
    point.unit = unit;
    std::vector<int> live = Chain(next);
    live.push_back(unit);
    point.gradient_bytes = Gradients(live);
    const v1::Unit& plan = plan_.units(unit);
    if (layout_.device() != v1::CUDA) {
      point.staging_bytes = layout_.staging_bytes();
    } else if (layout_.staging_bytes() > 0 && plan.reduce_dtype() != plan.param_dtype()) {
      point.staging_bytes = std::min(layout_.staging_bytes(), layout_.units(unit).padded_numel() *
                                                                  DTypeBytes(plan.reduce_dtype()));
    }
    return point;
  }

  const v1::Plan& plan_;
  const v1::Layout& layout_;
  const Activations& activations_;
  const int units_;
  std::vector<bool> takes_turns_;   // trained, and without a gradient slot of its own
  std::vector<int64_t> resharded_;  // by unit
  // Of units 0 to i - 1.
  std::vector<int64_t> whole_before_, kept_before_, resharded_before_;
  int64_t accumulated_ = 0;
  std::vector<StepPoint> points_;
};

}  // namespace

std::vector<StepPoint> StepTimeline(const v1::Plan& plan, const v1::Layout& layout,
                                    const Activations& activations) {
  return Timeline(plan, layout, activations).Make();
}

}  // namespace tessera
