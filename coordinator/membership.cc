#include "coordinator/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

using State = RankMember::State;

bool Reached(State actual, State wanted) {
  return actual != State::kGone && static_cast<int>(actual) >= static_cast<int>(wanted);
}

absl::Status Stale(const std::string& job, int64_t generation, absl::string_view why) {
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat("generation ", generation, " of job ", job, " ", why)),
                    "STALE_GENERATION");
}

}  // namespace

int Generation::CountAtLeast(State state) const {
  return static_cast<int>(
      std::count_if(ranks.begin(), ranks.end(),
                    [state](const RankMember& rank) { return Reached(rank.state, state); }));
}

bool Generation::AllAtLeast(State state) const {
  size_t& rank = lacked_[static_cast<size_t>(state)];
  while (rank < ranks.size() && Reached(ranks[rank].state, state)) ++rank;
  if (rank < ranks.size()) return false;
  // Some may have fallen back meanwhile.
  rank = 0;
  return CountAtLeast(state) == static_cast<int>(ranks.size());
}

std::string Generation::Missing(State state) const {
  std::vector<std::string> runs;
  const int count = static_cast<int>(ranks.size());
  int missing = 0;
  for (int begin = 0; begin < count; ++begin) {
    if (Reached(ranks[begin].state, state)) continue;
    int end = begin;
    while (end + 1 < count && !Reached(ranks[end + 1].state, state)) ++end;
    runs.push_back(begin == end ? absl::StrCat(begin) : absl::StrCat(begin, "-", end));
    missing += end - begin + 1;
    begin = end;
  }
  return absl::StrCat(missing == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "));
}

std::string Generation::MissingOn(State state) const {
  std::vector<std::string> names;
  int last = -1;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (Reached(ranks[rank].state, state) || HostIndexOf(rank) == last) continue;
    last = HostIndexOf(rank);
    names.push_back(hosts[last].name);
  }
  return absl::StrCat(names.size() == 1 ? "host " : "hosts ", absl::StrJoin(names, ", "));
}

absl::Time Membership::Advance(absl::Time now) {
  if (last_clock_ == absl::InfinitePast()) {
    now_ = now;
  } else if (now > last_clock_) {
    const absl::Duration gap = now - last_clock_;
    now_ += gap > options_.pause ? options_.tick : gap;
  }
  last_clock_ = std::max(last_clock_, now);
  return now_;
}

MemberId Membership::AddHost(const v1::JoinHost& join, absl::Duration lease) {
  HostMember host;
  host.id = ++last_id_;
  host.name = join.host_name();
  host.local_workers = join.local_workers();
  host.bound_job = join.job();
  host.program = join.program();
  host.incarnation = join.incarnation();
  host.pid = join.pid();
  host.lease = lease;
  host.heard = now_;
  hosts_.emplace(host.id, std::move(host));
  return last_id_;
}

std::vector<MemberId> Membership::Waiting(const std::string& job) const {
  std::vector<MemberId> waiting;
  for (const auto& [id, host] : hosts_) {
    if (host.job.empty() && host.bound_job == job) waiting.push_back(id);
  }
  return waiting;
}

void Membership::Reserve(MemberId host, const std::string& job) {
  const auto found = hosts_.find(host);
  if (found != hosts_.end()) found->second.job = job;
}

int64_t Membership::Form(const std::string& job, const std::vector<MemberId>& hosts, int world_size,
                         absl::Duration lease) {
  Generation generation;
  generation.number = ++last_generation_[job];
  for (const MemberId host : hosts) {
    HostMember& member = hosts_.at(host);
    member.job = job;
    member.lease = std::max(member.lease, lease);
    Generation::Host& of = generation.hosts.emplace_back();
    of.id = host;
    of.name = member.name;
    of.incarnation = member.incarnation;
  }
  generation.ranks.resize(world_size);
  generations_[job] = std::move(generation);
  return last_generation_[job];
}

absl::StatusOr<MemberId> Membership::AddRank(const v1::JoinRank& join, absl::Duration lease) {
  TESSERA_RETURN_IF_ERROR(CheckGeneration(join.job(), join.generation()));
  Generation& generation = generations_.at(join.job());
  if (join.rank() < 0 || join.rank() >= static_cast<int>(generation.ranks.size())) {
    return absl::NotFoundError(absl::StrCat("job ", join.job(), " has no rank ", join.rank(),
                                            "; its world size is ", generation.ranks.size()));
  }
  RankMember& rank = generation.ranks[join.rank()];
  // What an earlier coordinator did not keep of it, nobody can gainsay.
  const bool same = rank.incarnation.empty() || rank.incarnation == join.incarnation();
  const bool again =
      join.rejoin() && rank.id == 0 && same && (rank.away || rank.state == State::kDone);
  if (rank.state != State::kMissing && !again) {
    return WithReason(absl::AbortedError(absl::StrCat("rank ", join.rank(), " of job ", join.job(),
                                                      " is held by process ", rank.pid, " on host ",
                                                      generation.HostOf(join.rank()).name)),
                      "RANK_TAKEN");
  }
  rank.id = ++last_id_;
  rank.away = false;
  if (rank.state == State::kMissing) rank.state = State::kJoined;
  rank.incarnation = join.incarnation();
  rank.pid = join.pid();
  rank.lease = lease;
  rank.heard = now_;
  ranks_[rank.id] = {join.job(), join.rank()};
  return rank.id;
}

absl::Status Membership::CheckGeneration(const std::string& job, int64_t generation) const {
  const Generation* current = FindGeneration(job);
  if (current == nullptr) return Stale(job, generation, "does not exist");
  if (current->number != generation) {
    return Stale(job, generation, absl::StrCat("is over; the present one is ", current->number));
  }
  if (!current->live) return Stale(job, generation, "is over");
  return absl::OkStatus();
}

absl::Status Membership::CheckRank(const std::string& job, int64_t generation, int rank,
                                   const std::string& incarnation) const {
  TESSERA_RETURN_IF_ERROR(CheckGeneration(job, generation));
  const std::vector<RankMember>& ranks = FindGeneration(job)->ranks;
  if (rank < 0 || rank >= static_cast<int>(ranks.size()) || ranks[rank].state == State::kMissing ||
      ranks[rank].incarnation != incarnation) {
    return Stale(job, generation, absl::StrCat("does not have this process as rank ", rank));
  }
  return absl::OkStatus();
}

RankMember* Membership::Find(const RankId& rank) {
  const auto found = generations_.find(rank.job);
  if (found == generations_.end()) return nullptr;
  if (rank.rank < 0 || rank.rank >= static_cast<int>(found->second.ranks.size())) return nullptr;
  return &found->second.ranks[rank.rank];
}

void Membership::SetState(const RankId& rank, State state) {
  if (RankMember* member = Find(rank); member != nullptr) member->state = state;
}

void Membership::SetMeasuredBytes(const RankId& rank, int64_t measured_bytes) {
  if (RankMember* member = Find(rank); member != nullptr) member->measured_bytes = measured_bytes;
}

const HostMember* Membership::FindHost(MemberId id) const {
  const auto found = hosts_.find(id);
  return found == hosts_.end() ? nullptr : &found->second;
}

std::optional<RankId> Membership::FindRank(MemberId id) const {
  const auto found = ranks_.find(id);
  if (found == ranks_.end()) return std::nullopt;
  return found->second;
}

const Generation* Membership::FindGeneration(const std::string& job) const {
  const auto found = generations_.find(job);
  return found == generations_.end() ? nullptr : &found->second;
}

std::vector<MemberId> Membership::MembersOf(const std::string& job) const {
  std::vector<MemberId> members;
  for (const auto& [id, host] : hosts_) {
    if (host.job == job || (host.job.empty() && host.bound_job == job)) members.push_back(id);
  }
  const Generation* generation = FindGeneration(job);
  if (generation == nullptr) return members;
  for (const RankMember& rank : generation->ranks) {
    if (rank.id != 0) members.push_back(rank.id);
  }
  return members;
}

void Membership::Heard(MemberId id) {
  if (const auto host = hosts_.find(id); host != hosts_.end()) {
    host->second.heard = now_;
  } else if (const auto rank = ranks_.find(id); rank != ranks_.end()) {
    if (RankMember* member = Find(rank->second); member != nullptr) member->heard = now_;
  }
}

std::vector<MemberId> Membership::Expired() const {
  std::vector<MemberId> expired;
  // Steady time stands between two ticks, so what was heard may be a tick younger than it says.
  const auto over = [this](absl::Time heard, absl::Duration lease) {
    return now_ - heard > lease + options_.tick;
  };
  for (const auto& [id, host] : hosts_) {
    if (over(host.heard, host.lease)) expired.push_back(id);
  }
  for (const auto& [job, generation] : generations_) {
    for (const RankMember& rank : generation.ranks) {
      if (rank.id != 0 && over(rank.heard, rank.lease)) expired.push_back(rank.id);
    }
  }
  return expired;
}

bool Membership::HostIsSilent(const RankId& rank) const {
  const Generation* generation = FindGeneration(rank.job);
  if (generation == nullptr || !generation->live) return false;
  const HostMember* host = FindHost(generation->HostOf(rank.rank).id);
  return host != nullptr && now_ - host->heard >= host->lease / 2;
}

void Membership::Remove(MemberId id) {
  if (const auto host = hosts_.find(id); host != hosts_.end()) {
    const auto generation = generations_.find(host->second.job);
    if (generation != generations_.end()) {
      for (Generation::Host& of : generation->second.hosts) {
        if (of.id == id) of.id = 0;
      }
    }
    hosts_.erase(host);
    return;
  }
  const auto rank = ranks_.find(id);
  if (rank == ranks_.end()) return;
  if (RankMember* member = Find(rank->second); member != nullptr) {
    member->id = 0;
    if (member->state != State::kDone) member->state = State::kGone;
  }
  ranks_.erase(rank);
}

void Membership::End(const std::string& job) {
  EndGeneration(job);
  for (const MemberId id : MembersOf(job)) Remove(id);
}

void Membership::EndGeneration(const std::string& job) {
  const auto generation = generations_.find(job);
  if (generation == generations_.end()) return;
  for (const RankMember& rank : generation->second.ranks) Remove(rank.id);
  generation->second.live = false;
  for (RankMember& rank : generation->second.ranks) {
    if (rank.state != State::kMissing) rank.state = State::kGone;
    rank.away = false;
  }
}

void Membership::Forget(const std::string& job) { generations_.erase(job); }

void Membership::Restore(const std::string& job, Generation generation) {
  SetLastGeneration(job, generation.number);
  generations_[job] = std::move(generation);
}

void Membership::NobodyIsAway(const std::string& job) {
  const auto generation = generations_.find(job);
  if (generation == generations_.end()) return;
  for (Generation::Host& host : generation->second.hosts) host.away = false;
  for (RankMember& rank : generation->second.ranks) {
    if (std::exchange(rank.away, false)) rank.state = State::kGone;
  }
}

int64_t Membership::LastGeneration(const std::string& job) const {
  const auto last = last_generation_.find(job);
  return last == last_generation_.end() ? 0 : last->second;
}

void Membership::SetLastGeneration(const std::string& job, int64_t number) {
  int64_t& last = last_generation_[job];
  last = std::max(last, number);
}

void Membership::Detach(MemberId id) {
  if (const auto host = hosts_.find(id); host != hosts_.end()) {
    const auto generation = generations_.find(host->second.job);
    if (generation != generations_.end()) {
      for (Generation::Host& of : generation->second.hosts) {
        if (of.id != id) continue;
        of.id = 0;
        of.away = true;
      }
    }
    hosts_.erase(host);
  } else if (const auto rank = ranks_.find(id); rank != ranks_.end()) {
    if (RankMember* member = Find(rank->second); member != nullptr) {
      member->id = 0;
      member->away = true;
    }
    ranks_.erase(rank);
  }
}

MemberId Membership::Reattach(const std::string& job, int host, const v1::JoinHost& join,
                              absl::Duration lease) {
  const MemberId id = AddHost(join, lease);
  Reserve(id, job);
  Generation::Host& of = generations_.at(job).hosts[host];
  of.id = id;
  of.away = false;
  return id;
}

}  // namespace tessera
