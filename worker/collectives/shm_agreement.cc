// How the ranks of a host see that they do the same: what each has issued, and small exchanges.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/disagreement.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/collectives/shm_collectives.h"

namespace tessera {
namespace {

constexpr int kUnitBits = 28;
constexpr int kNumberShift = 32;

}  // namespace

std::vector<int> ShmCollectives::Below(int slot, bool left, uint64_t tenancy) const {
  std::vector<int> ranks;
  const auto [first, end] = UsersOf(slot);
  for (int rank = first; rank < end; ++rank) {
    const SlotControl& control = sync_.slot(rank, slot);
    if ((left ? control.left : control.entered).load(std::memory_order_acquire) < tenancy) {
      ranks.push_back(sync_.RankOf(rank));
    }
  }
  return ranks;
}

uint64_t ShmCollectives::Issue(Kind kind, int unit) {
  const uint64_t number = ++issued_;
  const uint64_t tag = (number << kNumberShift) | (static_cast<uint64_t>(kind) << kUnitBits) |
                       static_cast<uint64_t>(unit + 1);
  // Nobody sleeps for this word alone, so nobody is woken.
  sync_.record(sync_.index()).issued[number % kIssueRing].store(tag, std::memory_order_release);
  if (options_.position != nullptr) options_.position->SetSequence(number);
  return tag;
}

std::string ShmCollectives::Describe(uint64_t tag) const {
  const int unit = static_cast<int>(tag & ((1u << kUnitBits) - 1)) - 1;
  switch (static_cast<Kind>((tag >> kUnitBits) & 0xf)) {
    case Kind::kUnshard:
      return absl::StrCat("unshard of unit ", options_.unit_names[unit]);
    case Kind::kReduce:
      return absl::StrCat("reduce of unit ", options_.unit_names[unit]);
    case Kind::kGatherShards:
      return absl::StrCat("gather of the master shards of unit ", options_.unit_names[unit]);
    case Kind::kSumReplicas:
      return absl::StrCat("sum over the replicas of unit ", options_.unit_names[unit]);
    case Kind::kParts:
      return absl::StrCat("sum over all ranks through unit ", options_.unit_names[unit]);
    case Kind::kExchange:
      return "an exchange between all ranks";
  }
  return "nothing known";
}

std::pair<int, v1::Operation> ShmCollectives::PlaceOf(uint64_t tag) {
  const int unit = static_cast<int>(tag & ((1u << kUnitBits) - 1)) - 1;
  switch (static_cast<Kind>((tag >> kUnitBits) & 0xf)) {
    case Kind::kUnshard:
      return {unit, v1::UNSHARD};
    case Kind::kReduce:
    case Kind::kSumReplicas:
      return {unit, v1::REDUCE};
    default:
      return {unit, v1::OPERATION_UNSPECIFIED};
  }
}

uint64_t ShmCollectives::LastIssued(int local_rank) const {
  uint64_t last = 0;
  for (const std::atomic<uint64_t>& issued : sync_.record(local_rank).issued)
    last = std::max(last, issued.load(std::memory_order_acquire));
  return last;
}

absl::Status ShmCollectives::EndWait(absl::Status status, uint64_t tag,
                                     absl::FunctionRef<std::vector<int>()> missing) {
  if (status.ok()) return status;
  if (options_.position != nullptr) options_.position->Freeze();
  if (!absl::IsDeadlineExceeded(status)) return status;
  std::string last;
  for (const int rank : missing()) {
    const int local = rank - options_.sync.first_rank;
    if (local < 0 || local >= sync_.size()) continue;
    const uint64_t issued = LastIssued(local);
    absl::StrAppend(
        &last, "; the last operation of rank ", rank, " is ",
        issued == 0 ? "none" : absl::StrCat(issued >> kNumberShift, ", ", Describe(issued)));
  }
  if (last.empty()) return status;
  if (tag != 0) absl::StrAppend(&last, "; this one is ", tag >> kNumberShift);
  absl::Status longer(status.code(), absl::StrCat(status.message(), last));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { longer.SetPayload(url, payload); });
  return longer;
}

absl::Status ShmCollectives::CheckFingerprint(int local_rank) const {
  const uint64_t other = sync_.record(local_rank).fingerprint.load(std::memory_order_acquire);
  if (other == options_.fingerprint || other == 0 || options_.fingerprint == 0)
    return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        kRanksDisagree, "the plan: rank ", sync_.RankOf(local_rank), " holds ",
                        absl::Hex(other, absl::kZeroPad16), ", rank ", sync_.RankOf(sync_.index()),
                        " holds ", absl::Hex(options_.fingerprint, absl::kZeroPad16),
                        "; start every rank of the job anew, from programs of one build")),
                    "RANKS_DISAGREE");
}

absl::Status ShmCollectives::CheckAgreement(uint64_t tag) const {
  if (tag == 0) return absl::OkStatus();
  const uint64_t number = tag >> kNumberShift;
  const bool of_unit = (tag & ((1u << kUnitBits) - 1)) != 0;
  for (int rank = 0; rank < sync_.size(); ++rank) {
    if (of_unit) TESSERA_RETURN_IF_ERROR(CheckFingerprint(rank));
    const uint64_t other =
        sync_.record(rank).issued[number % kIssueRing].load(std::memory_order_acquire);
    if (other == tag || other >> kNumberShift != number) continue;
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            kRanksDisagree, "operation ", number, ": rank ", sync_.RankOf(rank), " issued ",
            Describe(other), ", rank ", sync_.RankOf(sync_.index()), " issued ", Describe(tag))),
        "ORDER_MISMATCH");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ShmCollectives::Exchange(absl::string_view payload,
                                                                  absl::string_view what) {
  if (payload.size() > kExchangeBytes)
    return absl::InvalidArgumentError("an exchange of more than 128 bytes");
  const uint64_t tag = Issue(Kind::kExchange, -1);
  const uint64_t number = ++exchanged_;
  const int64_t turn = options_.hosts == nullptr ? 0 : options_.hosts->Issue();
  // Two buffers are enough: nobody contributes to exchange n + 2 before everybody has read exchange
  // n.
  RankControl& own = sync_.record(sync_.index());
  std::memcpy(own.exchange[number % 2], payload.data(), payload.size());
  faults_.Hit("barrier");
  sync_.Announce(own.exchanged, number);
  auto arrived = [&](int rank) {
    return sync_.record(rank).exchanged.load(std::memory_order_acquire) >= number;
  };
  auto missing = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < sync_.size(); ++rank) {
      if (!arrived(rank)) ranks.push_back(sync_.RankOf(rank));
    }
    return ranks;
  };
  const PositionPublisher::Waiting waiting(options_.position, -1, v1::OPERATION_UNSPECIFIED, what);
  const absl::Status waited = sync_.WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        AdvancePending();
        for (int rank = 0; rank < sync_.size(); ++rank) {
          if (arrived(rank)) continue;
          TESSERA_RETURN_IF_ERROR(CheckAgreement(tag));
          TESSERA_RETURN_IF_ERROR(CheckHosts());
          return false;
        }
        return true;
      },
      [&] { return std::string(what); }, missing);
  TESSERA_RETURN_IF_ERROR(EndWait(waited, tag, missing));
  sync_.set_timeout(options_.sync.timeout);
  std::vector<std::string> payloads;
  for (int rank = 0; rank < sync_.size(); ++rank) {
    payloads.emplace_back(sync_.record(rank).exchange[number % 2], payload.size());
  }
  if (options_.hosts == nullptr) return payloads;
  absl::StatusOr<std::vector<std::string>> gathered = GatherHosts(payloads, turn, what);
  TESSERA_RETURN_IF_ERROR(EndWait(gathered.status(), tag, [] { return std::vector<int>(); }));
  return gathered;
}

}  // namespace tessera
