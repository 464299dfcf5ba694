#include "tests/simulation/collective.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {

void Collective::Enter(int rank, Member member) {
  hosts_.insert(member.host);
  members_[rank] = std::move(member);
}

void Collective::Arrive(int rank, absl::Duration timeout, Events::Action all_there,
                        Events::Action released) {
  released_[rank] = std::move(released);
  all_there_ = std::move(all_there);
  if (gone_.has_value()) {
    Break(*gone_, absl::UnavailableError(absl::StrCat("rank ", *gone_, " is gone")));
    return;
  }
  if (++waiting_ == 1 && timeout != absl::InfiniteDuration()) {
    base_->events.After(timeout, [weak = weak_from_this(), meeting = meeting_] {
      if (const auto self = weak.lock(); self != nullptr) self->Expire(meeting);
    });
  }
  if (waiting_ == world_size()) TryComplete();
}

absl::Time Collective::ApartUntil() const {
  absl::Time until = absl::InfinitePast();
  if (hosts_.size() < 2) return until;
  for (const std::string& host : hosts_) until = std::max(until, network_->CutOffUntil(host));
  return until;
}

void Collective::TryComplete() {
  if (waiting_ < world_size() || gone_.has_value()) return;
  const absl::Time now = base_->events.now();
  if (const absl::Time apart = ApartUntil(); apart > now) {
    base_->events.After(apart - now + absl::Milliseconds(1),
                        [weak = weak_from_this(), meeting = meeting_] {
                          const auto self = weak.lock();
                          if (self != nullptr && self->meeting_ == meeting) self->TryComplete();
                        });
    return;
  }
  ++meeting_;
  waiting_ = 0;
  if (all_there_ != nullptr) std::exchange(all_there_, nullptr)();
  for (int rank = 0; rank < world_size(); ++rank) {
    Events::Action released = std::exchange(released_[rank], nullptr);
    const std::shared_ptr<Process> process = members_[rank].process.lock();
    if (process == nullptr) continue;
    process->Later(absl::ZeroDuration(), absl::Milliseconds(2), std::move(released));
  }
}

void Collective::Expire(int64_t meeting) {
  if (meeting != meeting_ || gone_.has_value()) return;
  int missing = 0;
  while (missing + 1 < world_size() && released_[missing] != nullptr) ++missing;
  // All wait, but one host is cut off from the others.
  for (int rank = 0; waiting_ == world_size() && rank < world_size(); ++rank) {
    if (network_->CutOffUntil(members_[rank].host) > base_->events.now()) missing = rank;
  }
  Break(missing, absl::DeadlineExceededError(
                     absl::StrCat("rank ", missing, " did not come to where the others wait")));
}

void Collective::Break(int rank, const absl::Status& why) {
  for (int other = 0; other < world_size(); ++other) {
    if (released_[other] == nullptr) continue;
    released_[other] = nullptr;
    const std::shared_ptr<Process> process = members_[other].process.lock();
    if (process == nullptr) continue;
    process->Later(absl::ZeroDuration(), absl::Milliseconds(60),
                   [broken = members_[other].broken, rank, why] { broken(rank, why); });
  }
  waiting_ = 0;
  ++meeting_;
}

void Collective::Gone(int rank) {
  if (gone_.has_value() || done_.count(rank) != 0) return;
  gone_ = rank;
  released_[rank] = nullptr;
  Break(rank, absl::UnavailableError(absl::StrCat("rank ", rank, " is gone")));
}

void Collective::Done(int rank) { done_.insert(rank); }

}  // namespace tessera::simulation
