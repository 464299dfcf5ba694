#include "worker/collectives/shm_collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {
namespace {

constexpr int kUnitBits = 28;
constexpr int kNumberShift = 32;

// By unit: the slot that is the unit's own; -1: none.
std::vector<int> ResidentSlots(const v1::Layout& layout, size_t units) {
  std::vector<int> slots(units, -1);
  for (int slot = 0; slot < layout.unsharded_slots_size(); ++slot) {
    if (layout.unsharded_slots(slot).has_unit()) slots[layout.unsharded_slots(slot).unit()] = slot;
  }
  return slots;
}

class Stopwatch {
 public:
  double ElapsedUs() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

// Something that is done in parts, as the other ranks allow.
class ShmCollectives::Operation : public Event::State {
 public:
  Operation(ShmCollectives* owner, uint64_t tag) : owner_(owner), tag_(tag) {}

  // Does what can be done now; true when there is nothing left.
  virtual bool Advance() = 0;
  virtual std::string What() const = 0;
  // World ranks that have not arrived.
  virtual std::vector<int> Missing() const = 0;

  absl::StatusOr<bool> Poll() override {
    owner_->AdvancePending();
    return done;
  }
  absl::Status Wait() override { return owner_->WaitFor(*this); }

  uint64_t tag() const { return tag_; }
  bool done = false;

 protected:
  ShmCollectives* const owner_;

 private:
  const uint64_t tag_;  // 0: nothing that the ranks have to agree on
};

class ShmCollectives::AllGatherOperation final : public Operation {
 public:
  AllGatherOperation(ShmCollectives* owner, uint64_t tag, const AllGatherOp& op, uint64_t tenancy,
                     OpTiming* timing)
      : Operation(owner, tag), op_(op), tenancy_(tenancy), timing_(timing) {}

  bool Advance() override {
    if (!written_) {
      if (!owner_->AllReached(op_.slot, /*left=*/true, tenancy_ - 1)) return false;
      owner_->faults_.Hit("unshard_write");
      const Stopwatch watch;
      char* slice = static_cast<char*>(owner_->Unsharded(op_.slot)) +
                    owner_->group().index * op_.shard.numel * DTypeBytes(op_.param_dtype);
      CastFloat32(op_.shard.as<float>().data(), op_.shard.numel, op_.param_dtype, slice);
      if (timing_ != nullptr) timing_->work_us = watch.ElapsedUs();
      written_ = true;
      owner_->sync_.Announce(owner_->sync_.slot(owner_->sync_.index(), op_.slot).entered, tenancy_);
      owner_->faults_.Hit("unshard_written");
    }
    return owner_->AllReached(op_.slot, /*left=*/false, tenancy_);
  }
  std::string What() const override { return owner_->Describe(tag()); }
  std::vector<int> Missing() const override {
    return written_ ? owner_->Below(op_.slot, false, tenancy_)
                    : owner_->Below(op_.slot, true, tenancy_ - 1);
  }
  int slot() const { return op_.slot; }

 private:
  const AllGatherOp op_;
  const uint64_t tenancy_;
  OpTiming* const timing_;
  bool written_ = false;
};

class ShmCollectives::AcquireOperation final : public Operation {
 public:
  AcquireOperation(ShmCollectives* owner, int unit, int slot, uint64_t tenancy)
      : Operation(owner, 0), unit_(unit), slot_(slot), tenancy_(tenancy) {}

  bool Advance() override { return owner_->AllReached(slot_, /*left=*/true, tenancy_ - 1); }
  std::string What() const override {
    return absl::StrCat("the gradient buffer of unit ", owner_->options_.unit_names[unit_]);
  }
  std::vector<int> Missing() const override { return owner_->Below(slot_, true, tenancy_ - 1); }

 private:
  const int unit_;
  const int slot_;
  const uint64_t tenancy_;
};

class ShmCollectives::ReduceOperation final : public Operation {
 public:
  ReduceOperation(ShmCollectives* owner, uint64_t tag, const ReduceScatterOp& op, int slot,
                  uint64_t tenancy, OpTiming* timing)
      : Operation(owner, tag), op_(op), slot_(slot), tenancy_(tenancy), timing_(timing) {}

  bool Advance() override {
    if (!owner_->AllReached(slot_, /*left=*/false, tenancy_)) return false;
    owner_->faults_.Hit("reduce");
    const Stopwatch watch;
    const int ranks = owner_->sync_.size();
    const int64_t offset = owner_->group().index * op_.shard.numel * DTypeBytes(op_.gradient_dtype);
    std::vector<const void*> slices(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      slices[rank] = owner_->GradientOf(rank, op_.gradient_slot) + offset;
    }
    ReduceSlice(slices, op_.shard.numel,
                {.gradient_dtype = op_.gradient_dtype,
                 .reduce_dtype = op_.reduce_dtype,
                 .divide = DivideFactorsFor(op_.reduce_dtype, ranks),
                 .accumulate = op_.accumulate},
                op_.shard.as<float>().data());
    if (timing_ != nullptr) timing_->work_us = watch.ElapsedUs();
    owner_->sync_.Announce(owner_->sync_.slot(owner_->sync_.index(), slot_).left, tenancy_);
    owner_->faults_.Hit("reduce_read");
    return true;
  }
  std::string What() const override { return owner_->Describe(tag()); }
  std::vector<int> Missing() const override { return owner_->Below(slot_, false, tenancy_); }

 private:
  const ReduceScatterOp op_;
  const int slot_;
  const uint64_t tenancy_;
  OpTiming* const timing_;
};

// Waits until every rank has entered the slot's tenancy.
class ShmCollectives::ArriveOperation final : public Operation {
 public:
  ArriveOperation(ShmCollectives* owner, uint64_t tag, int slot, uint64_t tenancy)
      : Operation(owner, tag), slot_(slot), tenancy_(tenancy) {}

  bool Advance() override { return owner_->AllReached(slot_, /*left=*/false, tenancy_); }
  std::string What() const override { return owner_->Describe(tag()); }
  std::vector<int> Missing() const override { return owner_->Below(slot_, false, tenancy_); }

 private:
  const int slot_;
  const uint64_t tenancy_;
};

ShmCollectives::ShmCollectives(Options options)
    : options_(std::move(options)),
      sync_(options_.sync),
      faults_(options_.faults != nullptr ? *options_.faults : no_faults_),
      tenancy_(options_.sync.unsharded_slots + options_.sync.gradient_slots, 0),
      resident_slot_(ResidentSlots(options_.layout, options_.unit_names.size())) {}

ShmCollectives::~ShmCollectives() = default;

void* ShmCollectives::Unsharded(int slot) {
  return options_.unsharded + options_.layout.unsharded_slots(slot).offset_bytes();
}

void* ShmCollectives::Gradient(int gradient_slot) {
  return const_cast<char*>(GradientOf(sync_.index(), gradient_slot));
}

const char* ShmCollectives::GradientOf(int local_rank, int gradient_slot) const {
  return options_.gradients + local_rank * options_.layout.gradient_stride_bytes() +
         options_.layout.gradient_slots(gradient_slot).offset_bytes();
}

bool ShmCollectives::AllReached(int slot, bool left, uint64_t tenancy) const {
  for (int rank = 0; rank < sync_.size(); ++rank) {
    const SlotControl& control = sync_.slot(rank, slot);
    if ((left ? control.left : control.entered).load(std::memory_order_acquire) < tenancy)
      return false;
  }
  return true;
}

std::vector<int> ShmCollectives::Below(int slot, bool left, uint64_t tenancy) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < sync_.size(); ++rank) {
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

Event ShmCollectives::Start(std::shared_ptr<Operation> operation) {
  // Everything that has become possible is done first: peers may be waiting for it.
  pending_.push_back(operation);
  AdvancePending();
  return Event(std::move(operation));
}

void ShmCollectives::AdvancePending() {
  for (auto it = pending_.begin(); it != pending_.end();) {
    (*it)->done = (*it)->Advance();
    it = (*it)->done ? pending_.erase(it) : std::next(it);
  }
}

absl::Status ShmCollectives::Progress() {
  AdvancePending();
  return sync_.Check();
}

absl::Status ShmCollectives::WaitFor(Operation& operation) {
  faults_.Hit("unshard_wait");
  TESSERA_RETURN_IF_ERROR(sync_.WaitUntil(
      [&]() -> absl::StatusOr<bool> {
        AdvancePending();
        if (!operation.done) TESSERA_RETURN_IF_ERROR(CheckAgreement(operation.tag()));
        return operation.done;
      },
      [&] { return operation.What(); }, [&] { return operation.Missing(); }));
  // Ranks that took different units to the same slot have all arrived, and hold a mixture.
  return CheckAgreement(operation.tag());
}

absl::StatusOr<Event> ShmCollectives::AllGather(const AllGatherOp& op, Stream* /*stream*/,
                                                OpTiming* timing) {
  const uint64_t tag = Issue(Kind::kUnshard, op.unit);
  if (Resident()) {
    return Start(std::make_shared<ArriveOperation>(this, tag, op.slot, tenancy_[op.slot]));
  }
  return Start(std::make_shared<AllGatherOperation>(this, tag, op, ++tenancy_[op.slot], timing));
}

void ShmCollectives::PublishShard(int unit) {
  const int slot = resident_slot_[unit];
  if (slot < 0) return;
  faults_.Hit("unshard_write");
  sync_.Announce(sync_.slot(sync_.index(), slot).entered, ++tenancy_[slot]);
  faults_.Hit("unshard_written");
}

void ShmCollectives::ReleaseUnsharded(int slot) {
  faults_.Hit("lease_release");
  if (Resident()) return;
  pending_.remove_if([&](const std::shared_ptr<Operation>& operation) {
    const auto* gather = dynamic_cast<const AllGatherOperation*>(operation.get());
    return gather != nullptr && gather->slot() == slot;
  });
  sync_.Announce(sync_.slot(sync_.index(), slot).left, tenancy_[slot]);
}

absl::StatusOr<Event> ShmCollectives::AcquireGradient(int unit, int gradient_slot,
                                                      Stream* /*stream*/) {
  faults_.Hit("gradient_acquire");
  const int slot = sync_.gradient_slot(gradient_slot);
  return Start(std::make_shared<AcquireOperation>(this, unit, slot, ++tenancy_[slot]));
}

absl::Status ShmCollectives::ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                                          Stream* /*stream*/) {
  std::memset(static_cast<char*>(Gradient(gradient_slot)) + offset_bytes, 0, bytes);
  return absl::OkStatus();
}

absl::StatusOr<Event> ShmCollectives::ReduceScatter(const ReduceScatterOp& op, Stream* /*stream*/,
                                                    OpTiming* timing) {
  const uint64_t tag = Issue(Kind::kReduce, op.unit);
  const int slot = sync_.gradient_slot(op.gradient_slot);
  faults_.Hit("reduce_ready");
  sync_.Announce(sync_.slot(sync_.index(), slot).entered, tenancy_[slot]);
  return Start(std::make_shared<ReduceOperation>(this, tag, op, slot, tenancy_[slot], timing));
}

absl::Status ShmCollectives::GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                                          char* whole) {
  const int64_t bytes = shard.bytes();
  if (sync_.size() == 1) {  // a slot of a narrower dtype may be shorter than the one shard
    if (whole != nullptr) std::memcpy(whole, shard.data, bytes);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const Event acquired, AcquireGradient(unit, gradient_slot, nullptr));
  TESSERA_RETURN_IF_ERROR(acquired.Wait());
  const uint64_t tag = Issue(Kind::kGatherShards, unit);
  const int slot = sync_.gradient_slot(gradient_slot);
  std::memcpy(Gradient(gradient_slot), shard.data, bytes);
  sync_.Announce(sync_.slot(sync_.index(), slot).entered, tenancy_[slot]);
  TESSERA_RETURN_IF_ERROR(
      Start(std::make_shared<ArriveOperation>(this, tag, slot, tenancy_[slot])).Wait());
  for (int rank = 0; whole != nullptr && rank < sync_.size(); ++rank) {
    std::memcpy(whole + rank * bytes, GradientOf(rank, gradient_slot), bytes);
  }
  sync_.Announce(sync_.slot(sync_.index(), slot).left, tenancy_[slot]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ShmCollectives::Exchange(absl::string_view payload,
                                                                  absl::string_view what) {
  if (payload.size() > kExchangeBytes)
    return absl::InvalidArgumentError("an exchange of more than 128 bytes");
  const uint64_t tag = Issue(Kind::kExchange, -1);
  const uint64_t number = ++exchanged_;
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
          return false;
        }
        return true;
      },
      [&] { return std::string(what); }, missing));
  std::vector<std::string> payloads;
  for (int rank = 0; rank < sync_.size(); ++rank) {
    payloads.emplace_back(sync_.record(rank).exchange[number % 2], payload.size());
  }
  return payloads;
}

}  // namespace tessera
