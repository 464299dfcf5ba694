#include "coordinator/stragglers.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// A rank's own work, in the order of StragglerDetector's tables.
constexpr v1::Operation kOwnWork[] = {v1::UNSHARD, v1::REDUCE, v1::OPTIMIZER, v1::FORWARD,
                                      v1::BACKWARD};
// Beyond it a rank has not worked for so long between two reports: it was started again.
constexpr double kLongestUs = 1e9;

}  // namespace

StragglerDetector::StragglerDetector(int units, int ranks, Options options)
    : units_(units), options_(options), ranks_(ranks), totals_us_(ranks) {}

int StragglerDetector::PlaceOf(int unit, v1::Operation operation) const {
  const auto* const end = std::end(kOwnWork);
  const auto* const found = std::find(std::begin(kOwnWork), end, operation);
  if (unit < 0 || unit >= units_ || found == end) return -1;
  return unit * kOperations + static_cast<int>(found - std::begin(kOwnWork));
}

void StragglerDetector::Record(
    int rank, int64_t step,
    const google::protobuf::RepeatedPtrField<v1::OperationSample>& samples) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size())) return;
  std::vector<uint32_t>& totals = totals_us_[rank];
  totals.resize(static_cast<size_t>(units_) * kOperations);
  std::vector<std::pair<int, double>> spent;
  for (const v1::OperationSample& sample : samples) {
    const int place = PlaceOf(sample.unit(), sample.operation());
    if (place < 0 || !std::isfinite(sample.total_us()) || sample.total_us() < 0) continue;
    const auto total = static_cast<uint32_t>(std::fmod(sample.total_us(), 4294967296.0));
    const double us = static_cast<uint32_t>(total - totals[place]);
    totals[place] = total;
    if (us > 0 && us < kLongestUs) spent.emplace_back(place, us);
  }
  Rank& state = ranks_[rank];
  // The first report only says where to count from.
  const bool first = state.reported < 0 || step < state.reported;
  const int64_t steps = first ? 0 : step - state.reported;
  state.reported = step;
  if (!first) Count(rank, steps, spent);
}

void StragglerDetector::Count(int rank, int64_t steps,
                              const std::vector<std::pair<int, double>>& spent) {
  ranks_[rank].steps += steps;
  for (const auto& [place, us] : spent) ranks_[rank].own_us += us;
  for (auto& [slow, places] : places_) {
    std::vector<double>& sums = slow == rank ? places.own_us : places.others_us;
    (slow == rank ? places.own_steps : places.others_steps) += steps;
    for (const auto& [place, us] : spent) sums[place] += us;
  }
}

void StragglerDetector::BeginRound(absl::Time now) {
  round_began_ = now;
  for (Rank& rank : ranks_) {
    rank.steps = 0;
    rank.own_us = 0;
  }
}

bool StragglerDetector::Judge(int rank, bool slow, bool quick, absl::Time began, absl::Time now) {
  Rank& state = ranks_[rank];
  if (state.straggles) {
    state.quick_since = quick ? std::min(state.quick_since, began) : absl::InfiniteFuture();
    if (now - state.quick_since < options_.lasting) return false;
    state.straggles = false;
    state.slow_since = absl::InfiniteFuture();
    return true;
  }
  if (!slow) {
    state.slow_since = absl::InfiniteFuture();
    places_.erase(rank);
    return false;
  }
  if (state.slow_since == absl::InfiniteFuture()) {
    state.slow_since = began;
    if (places_.size() < kMostPlaces) {
      Places& places = places_[rank];
      places.own_us.resize(static_cast<size_t>(units_) * kOperations);
      places.others_us.resize(static_cast<size_t>(units_) * kOperations);
    }
  }
  if (now - state.slow_since < options_.lasting) return false;
  state.straggles = true;
  state.quick_since = absl::InfiniteFuture();
  return true;
}

void StragglerDetector::Locate(int rank, Change& change) const {
  const auto found = places_.find(rank);
  if (found == places_.end()) return;
  const Places& places = found->second;
  if (places.own_steps == 0 || places.others_steps == 0) return;
  double most = 0;
  for (size_t place = 0; place < places.own_us.size(); ++place) {
    const double own = places.own_us[place] / static_cast<double>(places.own_steps);
    const double others = places.others_us[place] / static_cast<double>(places.others_steps);
    if (own - others <= most) continue;
    most = own - others;
    change.unit = static_cast<int>(place) / kOperations;
    change.operation = kOwnWork[place % kOperations];
    change.place_us = own;
    change.place_others_us = others;
  }
}

std::vector<StragglerDetector::Change> StragglerDetector::Advance(absl::Time now) {
  std::vector<Change> changes;
  if (ranks_.size() < 2) return changes;
  if (round_began_ == absl::InfinitePast()) BeginRound(now);
  const absl::Duration round = now - round_began_;
  if (round < options_.period) return changes;
  std::vector<double> own_us;
  double steps = 0;
  for (const Rank& rank : ranks_) {
    if (rank.steps == 0) return changes;  // its step takes longer
    own_us.push_back(rank.own_us / static_cast<double>(rank.steps));
    steps = std::max(steps, static_cast<double>(rank.steps));
  }
  std::vector<double> sorted = own_us;
  const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double median = *middle;
  const double least = options_.least_share * absl::ToDoubleMicroseconds(round) / steps;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const double own = own_us[rank];
    const bool slow = own > options_.factor * median && own - median > least;
    const bool quick = own <= (1 + options_.factor) / 2 * median || own - median <= least;
    if (!Judge(rank, slow, quick, round_began_, now)) continue;
    Change& change = changes.emplace_back();
    change.rank = rank;
    change.begins = ranks_[rank].straggles;
    change.since = change.begins ? ranks_[rank].slow_since : ranks_[rank].quick_since;
    change.own_us = own;
    change.median_us = median;
    Locate(rank, change);
    if (!change.begins) places_.erase(rank);
  }
  BeginRound(now);
  return changes;
}

}  // namespace tessera
