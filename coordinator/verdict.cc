#include "coordinator/verdict.h"

#include <string.h>

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace tessera {
namespace {

std::string RankOn(int rank, absl::string_view host) {
  return absl::StrCat("rank ", rank, " on host ", host);
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "" : absl::StrCat(" (SIG", name, ")");
}

}  // namespace

void Verdict::Add(Evidence evidence, absl::Time now) {
  if (!first_.has_value()) first_ = now;
  evidence_.push_back(std::move(evidence));
}

void Verdict::HostLost(absl::string_view host, absl::string_view why, absl::Time now) {
  // An agent tells things in order: what it reported before it went is the cause.
  if (saw_bad_exit_.count(std::string(host)) != 0) return;
  Add({kHost, std::nullopt, absl::StatusCode::kUnavailable,
       absl::StrCat("host ", host, " is lost: ", why)},
      now);
}

void Verdict::HostLeft(absl::string_view host, const absl::Status& status,
                       std::optional<int> blamed_rank, absl::Time now) {
  if (blamed_rank.has_value()) {
    ++accusations_[*blamed_rank];
    Add({kBlamed, blamed_rank, status.ok() ? absl::StatusCode::kUnavailable : status.code(),
         absl::StrCat("rank ", *blamed_rank, ": the agent of host ", host,
                      " says: ", status.message())},
        now);
    return;
  }
  if (saw_bad_exit_.count(std::string(host)) != 0) return;
  if (status.ok()) {
    Add({kHost, std::nullopt, absl::StatusCode::kUnavailable,
         absl::StrCat("host ", host, " left before the job was done")},
        now);
  } else {
    Add({kHost, std::nullopt, status.code(), absl::StrCat("host ", host, ": ", status.message())},
        now);
  }
}

void Verdict::RankExited(int rank, absl::string_view host, int exit_code, int signal,
                         absl::Time now, bool joined) {
  if (exit_code == 0 && signal == 0 && joined) {
    Add({kLeft, rank, absl::StatusCode::kUnavailable,
         absl::StrCat(RankOn(rank, host), " exited before its work was done"),
         /*finished_early=*/true},
        now);
    return;
  }
  if (done_.count(rank) == 0 && victims_.count(rank) == 0) saw_bad_exit_.emplace(host);
  const std::string how = signal != 0
                              ? absl::StrCat(" was killed by signal ", signal, SignalName(signal))
                              : absl::StrCat(" exited with code ", exit_code);
  Add({kExit, rank, absl::StatusCode::kUnavailable,
       absl::StrCat(RankOn(rank, host), how, joined ? "" : " before it joined the job")},
      now);
}

void Verdict::RankLeft(int rank, absl::string_view host, const absl::Status& status,
                       std::optional<int> blamed_rank, absl::Time now) {
  if (blamed_rank.has_value() && *blamed_rank != rank) {
    victims_.insert(rank);
    ++accusations_[*blamed_rank];
    Add({kBlamed, blamed_rank, status.ok() ? absl::StatusCode::kUnavailable : status.code(),
         absl::StrCat("rank ", *blamed_rank, " on host ", host, " is to blame, says rank ", rank,
                      ": ", status.message())},
        now);
    return;
  }
  if (status.ok()) {
    Add({kLeft, rank, absl::StatusCode::kUnavailable,
         absl::StrCat(RankOn(rank, host), " left before its work was done"),
         /*finished_early=*/true},
        now);
    return;
  }
  own_errors_.emplace(rank, status);
  Add({kLeft, rank, status.code(), absl::StrCat(RankOn(rank, host), ": ", status.message())}, now);
}

void Verdict::RankBroken(int rank, absl::string_view host, const absl::Status& status,
                         std::optional<int> blamed_rank, absl::Time now) {
  broken_.insert(rank);
  RankLeft(rank, host,
           status.ok() ? absl::UnavailableError("it can go no further in this generation") : status,
           blamed_rank, now);
}

void Verdict::RankBroke(int rank, absl::string_view host, absl::Time now) {
  Add({kBroke, rank, absl::StatusCode::kUnavailable,
       absl::StrCat(RankOn(rank, host), " is gone: its connection broke")},
      now);
}

void Verdict::RankLeaseEnded(int rank, absl::string_view host, absl::Duration lease,
                             absl::Time now) {
  Add({kLease, rank, absl::StatusCode::kUnavailable,
       absl::StrCat(RankOn(rank, host), " is lost: not heard of for ",
                    absl::FormatDuration(lease))},
      now);
}

void Verdict::Done(int rank) { done_.insert(rank); }

bool Verdict::Counts(const Evidence& evidence) const {
  if (!evidence.rank.has_value()) return true;
  if (evidence.kind == kBlamed) return true;
  if (done_.count(*evidence.rank) != 0) return false;
  // A victim's process may end in any way. Its own stream does not break: it left.
  return victims_.count(*evidence.rank) == 0;
}

int Verdict::Accusations(const Evidence& evidence) const {
  if (!evidence.rank.has_value()) return 0;
  const auto found = accusations_.find(*evidence.rank);
  return found == accusations_.end() ? 0 : found->second;
}

std::optional<Blame> Verdict::Decide(absl::Time now) const {
  const Evidence* best = nullptr;
  const auto weight = [this](const Evidence& evidence) {
    // Who waited in vain itself says more than who heard of it.
    return std::make_tuple(static_cast<int>(evidence.kind), -Accusations(evidence),
                           evidence.code == absl::StatusCode::kDeadlineExceeded ? 0 : 1);
  };
  for (const Evidence& evidence : evidence_) {
    if (!Counts(evidence)) continue;
    if (best == nullptr || weight(evidence) < weight(*best)) best = &evidence;
  }
  if (best == nullptr) return std::nullopt;
  if (best->kind != kHost && now - *first_ < options_.grace) return std::nullopt;
  Blame blame{best->code, best->reason, best->rank};
  blame.lease_ended = best->kind == kLease;
  blame.of_host = best->kind == kHost;
  blame.finished_early = best->finished_early;
  if (best->rank.has_value()) {
    // The process's own words say more than how it ended.
    for (const Evidence& evidence : evidence_) {
      if (evidence.kind != kLeft || evidence.rank != best->rank) continue;
      if (own_errors_.count(*best->rank) == 0) continue;
      blame.code = evidence.code;
      blame.reason = evidence.reason;
      blame.finished_early = false;
      break;
    }
  }
  return blame;
}

}  // namespace tessera
