#include "coordinator/recovery_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/job_planner.h"
#include "coordinator/runnable_hosts.h"

namespace tessera {
namespace {

bool IsLoss(const Blame& blame) {
  switch (blame.code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
      return !blame.finished_early;
    case absl::StatusCode::kCancelled:
      return blame.of_host;  // its agent was told to stop
    default:
      return false;
  }
}

}  // namespace

std::optional<Blame> WhyNotRecoverable(const v1::JobSpec& resolved, bool built, const v1::Job& job,
                                       const Blame& blame) {
  const bool has_run = job.state() == v1::RUNNING || job.state() == v1::RECOVERING;
  if (!has_run || resolved.max_recoveries() == 0 || built || !IsLoss(blame)) {
    return blame;
  }
  if (job.recoveries() < resolved.max_recoveries()) return std::nullopt;
  Blame last = blame;
  absl::StrAppend(&last.reason, "; the job has recovered ", job.recoveries(),
                  job.recoveries() == 1 ? " time" : " times",
                  ", as often as max_recoveries allows");
  return last;
}

absl::Duration BackOff::Lost(int64_t step) {
  if (step > step_) fruitless_ = 0;
  step_ = std::max(step, step_);
  const int waits = std::min(fruitless_++, 5);
  return waits == 0 ? absl::ZeroDuration() : absl::Milliseconds(250) * (1 << waits);
}

void BackOff::Began(int64_t step) {
  // Steps that no report had told of: the last loss was not a fruitless one.
  if (step > step_) fruitless_ = std::min(fruitless_, 1);
  step_ = step;
}

namespace {

// All ranks are on one host: the one that is there, or the spare that allows most.
HostChoice ChooseHost(const v1::JobSpec& resolved, int world_size, const HostOffer& slot,
                      const std::vector<HostOffer>& spares, Patience patience) {
  if (slot.id != 0) return {{slot.id}, world_size, /*same_hosts=*/true};
  HostChoice best;
  for (const HostOffer& spare : spares) {
    if (spare.local_workers >= world_size) return {{spare.id}, world_size, false};
    const int fits = ChooseWorldSize(resolved, spare.local_workers);
    if (patience == Patience::kBest && fits > best.world_size) best = {{spare.id}, fits, false};
  }
  return best;
}

}  // namespace

HostChoice ChooseHosts(const v1::JobSpec& resolved, int world_size,
                       const std::vector<HostOffer>& slots, const std::vector<HostOffer>& spares,
                       Patience patience) {
  const int local = RanksOfHost(resolved);
  if (local == 0) return ChooseHost(resolved, world_size, slots[0], spares, patience);
  HostChoice choice{{}, world_size, /*same_hosts=*/true};
  auto spare = spares.begin();
  const auto next_spare = [&]() -> MemberId {
    while (spare != spares.end() && spare->local_workers < local) ++spare;
    return spare == spares.end() ? 0 : spare++->id;
  };
  bool complete = true;
  for (const HostOffer& slot : slots) {
    choice.same_hosts = choice.same_hosts && slot.id != 0;
    choice.hosts.push_back(slot.id != 0 ? slot.id : next_spare());
    complete = complete && choice.hosts.back() != 0;
  }
  if (complete && patience == Patience::kWait) return choice;
  if (patience == Patience::kWait) return {};
  choice.hosts.erase(std::remove(choice.hosts.begin(), choice.hosts.end(), MemberId{0}),
                     choice.hosts.end());
  for (MemberId id = next_spare(); id != 0; id = next_spare()) choice.hosts.push_back(id);
  const int available = static_cast<int>(choice.hosts.size()) * local;
  choice.world_size = ChooseWorldSize(resolved, available);
  choice.hosts.resize(choice.world_size / local);
  choice.same_hosts = choice.same_hosts && choice.world_size == world_size;
  return choice;
}

bool CanGrow(const v1::JobSpec& resolved, int hosts, int world_size) {
  const int local = RanksOfHost(resolved);
  if (local == 0) return false;
  const int largest = ChooseWorldSize(resolved, static_cast<int>(resolved.mesh().max_workers()));
  return largest > world_size && largest > hosts * local;
}

}  // namespace tessera
