#include "coordinator/job_observer.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/disagreement.h"
#include "google/protobuf/repeated_field.h"

namespace tessera {
namespace {

// Positions of so many ranks are kept with an incident.
constexpr int kMaxPositions = 64;

std::string Milliseconds(double us) { return absl::StrFormat("%.1f ms", us / 1e3); }

std::string Seconds(absl::Duration time) {
  return absl::StrFormat("%.1fs", absl::ToDoubleSeconds(std::max(time, absl::ZeroDuration())));
}

v1::Incident::Kind KindOf(const Blame& blame) {
  if (absl::StrContains(blame.reason, kRanksDisagree)) return v1::Incident::DISAGREEMENT;
  const bool stuck = blame.lease_ended || blame.code == absl::StatusCode::kDeadlineExceeded;
  return stuck && blame.rank.has_value() ? v1::Incident::STUCK : v1::Incident::LOST;
}

bool IsLoss(v1::Incident::Kind kind) {
  return kind == v1::Incident::LOST || kind == v1::Incident::STUCK ||
         kind == v1::Incident::DISAGREEMENT;
}

}  // namespace

void JobObserver::BeginGeneration(std::shared_ptr<const PlannedJob> planned, int ranks,
                                  absl::Duration heartbeat) {
  planned_ = std::move(planned);
  const int units = planned_ == nullptr ? 0 : planned_->unit_count();
  // Two heartbeats, and what they may be late.
  positions_ = RankPositions(ranks, units, 2 * heartbeat + absl::Milliseconds(500));
  stragglers_ = StragglerDetector(units, ranks, {});
  for (const auto& [rank, incident] : straggling_) left_open_.push_back(incident.first);
  straggling_.clear();
}

std::string JobObserver::UnitName(int unit) const {
  if (planned_ == nullptr || unit < 0 || unit >= planned_->unit_count()) return "?";
  const std::string& fqn = planned_->planned().plan.units(unit).fqn();
  return fqn.empty() ? "(root)" : fqn;
}

std::string JobObserver::PositionOf(int rank, absl::Time now) const {
  return positions_.Describe(
      rank, [this](int unit) { return UnitName(unit); }, now);
}

v1::Incident JobObserver::Explain(Blame& blame, const std::string& host, absl::Time now) const {
  const auto names = [this](int unit) { return UnitName(unit); };
  v1::Incident incident;
  incident.set_kind(KindOf(blame));
  incident.set_host_name(host);
  if (blame.rank.has_value()) incident.add_ranks(*blame.rank);
  if (incident.kind() == v1::Incident::STUCK) {
    const auto stuck = positions_.FindStuck({*blame.rank}, names, now);
    if (stuck.has_value()) {
      absl::StrAppend(&blame.reason, "; ", stuck->sentence);
      incident.mutable_ranks()->Assign(stuck->ranks.begin(), stuck->ranks.end());
      if (stuck->unit >= 0) incident.set_unit(UnitName(stuck->unit));
      if (stuck->operation != v1::OPERATION_UNSPECIFIED)
        incident.set_operation(v1::Operation_Name(stuck->operation));
    }
  }
  incident.set_message(blame.reason);
  if (incident.kind() == v1::Incident::LOST && blame.rank.has_value()) {
    const std::string last = positions_.Describe(*blame.rank, names, now);
    if (!last.empty()) absl::StrAppend(incident.mutable_message(), "; as last heard it ", last);
  }
  for (std::string& position : positions_.DescribeAll(kMaxPositions, names, now))
    incident.add_positions(std::move(position));
  return incident;
}

std::vector<v1::Incident> JobObserver::Advance(absl::Time now,
                                               absl::FunctionRef<std::string(int)> host_of) {
  std::vector<v1::Incident> told;
  const auto end = [&](int64_t number, const std::string& outcome) {
    const v1::Incident* incident = incidents_.SetOutcome(number, outcome);
    if (incident != nullptr) told.push_back(*incident);
  };
  for (const int64_t number : std::exchange(left_open_, {}))
    end(number, "its generation ended while it lasted");
  for (const StragglerDetector::Change& change : stragglers_.Advance(now)) {
    const auto open = straggling_.find(change.rank);
    if (!change.begins) {
      if (open == straggling_.end()) continue;
      end(open->second.first,
          absl::StrCat("over after ", Seconds(change.since - open->second.second)));
      straggling_.erase(open);
      continue;
    }
    v1::Incident& incident = told.emplace_back();
    incident.set_kind(v1::Incident::STRAGGLER);
    incident.add_ranks(change.rank);
    incident.set_host_name(host_of(change.rank));
    incident.set_message(absl::StrCat("rank ", change.rank, " on host ", incident.host_name(),
                                      " is slower than the others: its own work takes ",
                                      Milliseconds(change.own_us), " a step, the median ",
                                      Milliseconds(change.median_us), ", for ",
                                      Seconds(now - change.since)));
    if (change.unit >= 0) {
      incident.set_unit(UnitName(change.unit));
      incident.set_operation(v1::Operation_Name(change.operation));
      absl::StrAppend(incident.mutable_message(), "; it loses most in ",
                      OperationText(change.operation), " of unit ", incident.unit(), " (",
                      Milliseconds(change.place_us), ", the others ",
                      Milliseconds(change.place_others_us), ")");
    }
    straggling_[change.rank] = {0, change.since};
  }
  return told;
}

v1::Incident JobObserver::Keep(v1::Incident incident, absl::Time now) {
  const v1::Incident::Kind kind = incident.kind();
  const int rank = incident.ranks().empty() ? -1 : incident.ranks(0);
  const int64_t number = incidents_.Add(std::move(incident));
  if (kind == v1::Incident::STRAGGLER) {
    const auto open = straggling_.find(rank);
    if (open != straggling_.end()) open->second.first = number;
  } else if (IsLoss(kind)) {
    open_loss_ = number;
    lost_ = now;
  }
  return *incidents_.Find(number);
}

void JobObserver::Restore(const v1::Incident& incident, absl::Time now) {
  if (incidents_.SetOutcome(incident.number(), incident.outcome()) == nullptr)
    incidents_.Restore(incident);
  if (incident.kind() == v1::Incident::STRAGGLER) {
    // Whether it still is one is found anew.
    if (incident.outcome().empty()) left_open_.push_back(incident.number());
    if (!incident.outcome().empty())
      left_open_.erase(std::remove(left_open_.begin(), left_open_.end(), incident.number()),
                       left_open_.end());
  } else if (IsLoss(incident.kind())) {
    open_loss_ = incident.outcome().empty() ? incident.number() : 0;
    lost_ = now;
  }
}

std::optional<v1::Incident> JobObserver::EndLoss(const std::string& what, absl::Time now) {
  const v1::Incident* incident = incidents_.SetOutcome(
      std::exchange(open_loss_, 0), absl::StrCat(what, " after ", Seconds(now - lost_)));
  if (incident == nullptr) return std::nullopt;
  return *incident;
}

}  // namespace tessera
