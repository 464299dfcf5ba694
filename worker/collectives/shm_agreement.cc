// How the ranks of a host see that they do the same: what each has issued, and small exchanges.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
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

absl::Status ShmCollectives::CheckAgreement(uint64_t tag) const {
  if (tag == 0) return absl::OkStatus();
  const uint64_t number = tag >> kNumberShift;
  for (int rank = 0; rank < sync_.size(); ++rank) {
    const uint64_t other =
        sync_.record(rank).issued[number % kIssueRing].load(std::memory_order_acquire);
    if (other == tag || other >> kNumberShift != number) continue;
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "ranks disagree on operation ", number, ": rank ", sync_.RankOf(rank), " issued ",
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
  TESSERA_RETURN_IF_ERROR(sync_.WaitUntil(
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
      [&] { return std::string(what); }, missing));
  sync_.set_timeout(options_.sync.timeout);
  std::vector<std::string> payloads;
  for (int rank = 0; rank < sync_.size(); ++rank) {
    payloads.emplace_back(sync_.record(rank).exchange[number % 2], payload.size());
  }
  if (options_.hosts != nullptr) return GatherHosts(payloads, turn, what);
  return payloads;
}

}  // namespace tessera
