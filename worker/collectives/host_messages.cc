#include "worker/collectives/host_messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "worker/blame.h"

namespace tessera {

void HostMessages::Begin(std::string what) {
  what_ = std::move(what);
  deadline_ = Clock::Real()->Now() + options_.timeout;
}

absl::Status HostMessages::Send(int other, absl::Span<const char> bytes, Batch& batch) {
  if (bytes.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<HostWire::Transfer>> transfer = wires_[other]->Send(bytes);
  if (!transfer.ok()) return Broken(other, transfer.status());
  batch.entries.push_back({other, *std::move(transfer)});
  return absl::OkStatus();
}

absl::Status HostMessages::Receive(int other, absl::Span<char> bytes, Batch& batch) {
  if (bytes.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<HostWire::Transfer>> transfer = wires_[other]->Receive(bytes);
  if (!transfer.ok()) return Broken(other, transfer.status());
  batch.entries.push_back({other, *std::move(transfer)});
  return absl::OkStatus();
}

absl::Status HostMessages::Finish(Batch& batch) {
  {
    MutexLock lock(mutex_);
    if (!cancelled_.ok()) return cancelled_;
    for (const Batch::Entry& entry : batch.entries) waited_for_.push_back(entry.transfer.get());
  }
  const absl::Status status = WaitForAll(batch);
  {
    MutexLock lock(mutex_);
    waited_for_.clear();
    if (!cancelled_.ok()) return cancelled_;
  }
  batch.entries.clear();
  return status;
}

void HostMessages::Cancel(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (!cancelled_.ok()) return;
  cancelled_ = status;
  for (HostWire::Transfer* transfer : waited_for_) transfer->Cancel();
}

// A wire whose wait has ended is of no use for what else was to come on it.
absl::Status HostMessages::WaitForAll(const Batch& batch) const {
  std::vector<int> late;
  for (const Batch::Entry& entry : batch.entries) {
    if (!late.empty() && late.back() == entry.host) continue;
    const absl::Duration left = deadline_ - Clock::Real()->Now();
    const absl::Status status = entry.transfer->Wait(std::max(left, absl::Milliseconds(1)));
    if (absl::IsDeadlineExceeded(status)) {
      late.push_back(entry.host);
    } else if (absl::IsCancelled(status)) {
      return status;
    } else if (!status.ok() && late.empty()) {
      return Broken(entry.host, status);
    }
  }
  return late.empty() ? absl::OkStatus() : Late(late);
}

absl::Status HostMessages::Broken(int other, const absl::Status& status) const {
  return BlameRank(absl::UnavailableError(absl::StrCat(
                       "the connection of rank ", options_.ranks[options_.host], " to rank ",
                       options_.ranks[other], " on host ", options_.host_names[other],
                       " is gone, in ", what_, ": ", status.message())),
                   options_.ranks[other]);
}

absl::Status HostMessages::Late(const std::vector<int>& hosts) const {
  const auto name = [this](std::string* out, int host) {
    absl::StrAppend(out, options_.host_names[host], " (rank ", options_.ranks[host], ")");
  };
  return BlameRank(
      absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(options_.timeout), " for ", what_,
          "; missing: ", hosts.size() == 1 ? "host " : "hosts ", absl::StrJoin(hosts, ", ", name))),
      options_.ranks[hosts.front()]);
}

}  // namespace tessera
