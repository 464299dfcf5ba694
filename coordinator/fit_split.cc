#include "coordinator/fit_split.h"

#include <algorithm>
#include <cstdlib>

#include "common/dtype.h"

namespace tessera {
namespace {

// Parameters of the first half.
int FirstHalf(const v1::Unit& unit) {
  int best = 1;
  int64_t least = unit.numel();
  int64_t before = 0;
  for (int i = 0; i + 1 < unit.parameters_size(); ++i) {
    before += unit.parameters(i).numel();
    const int64_t difference = std::abs(unit.numel() - 2 * before);
    if (difference >= least) continue;
    least = difference;
    best = i + 1;
  }
  return best;
}

void Recount(v1::Unit* unit) {
  int64_t numel = 0, trainable = 0;
  for (const v1::UnitParameter& parameter : unit->parameters()) {
    numel += parameter.numel();
    if (parameter.requires_grad()) trainable += parameter.numel();
  }
  unit->set_numel(numel);
  unit->set_trainable_numel(trainable);
}

}  // namespace

std::optional<SplitPlan> SplitLargestUnit(const v1::Plan& plan, const v1::Layout& layout) {
  SplitPlan split;
  int largest = -1;
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes =
        layout.units(i).padded_numel() * DTypeBytes(plan.units(i).param_dtype());
    if (bytes <= split.unsharded_bytes) continue;
    split.unsharded_bytes = bytes;
    largest = i;
  }
  if (largest < 0 || plan.units(largest).parameters_size() < 2) return std::nullopt;
  const v1::Unit& whole = plan.units(largest);
  split.fqn = whole.fqn();
  const int half = FirstHalf(whole);
  // In post-order a unit inside the root comes before it; one beside another is on its level.
  v1::Unit first = whole;
  v1::Unit second = whole;
  first.mutable_parameters()->DeleteSubrange(half, whole.parameters_size() - half);
  first.clear_buffers();
  second.mutable_parameters()->DeleteSubrange(0, half);
  Recount(&first);
  Recount(&second);
  if (!whole.has_enclosing_unit()) {
    first.set_fqn("(half)");
    first.set_enclosing_unit(largest);
  }
  for (int i = 0; i < plan.units_size(); ++i) {
    if (i == largest) *split.plan.add_units() = first;
    *split.plan.add_units() = i == largest ? second : plan.units(i);
  }
  for (v1::Unit& unit : *split.plan.mutable_units()) {
    if (unit.has_enclosing_unit() && unit.enclosing_unit() >= largest)
      unit.set_enclosing_unit(unit.enclosing_unit() + 1);
  }
  return split;
}

}  // namespace tessera
