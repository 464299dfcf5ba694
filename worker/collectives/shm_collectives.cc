#include "worker/collectives/shm_collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/collectives/shm_operation.h"

namespace tessera {
namespace {

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
      Write();
      if (timing_ != nullptr) timing_->work_us = watch.ElapsedUs();
      written_ = true;
      owner_->sync_.Announce(owner_->Own(op_.slot).entered, tenancy_);
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
  void Write() {
    const int64_t element = DTypeBytes(op_.param_dtype);
    const int64_t slice_bytes = op_.shard.numel * element;
    char* const whole = static_cast<char*>(owner_->Unsharded(op_.slot));
    const int index = owner_->group().index;
    if (op_.reshard_slot < 0) {
      CastElements(op_.shard.data, op_.shard.dtype, op_.shard.numel, op_.param_dtype,
                   whole + index * slice_bytes);
      return;
    }
    // Every reshard group has the whole unit: each writes its share of it into the common memory.
    const int64_t share = index / op_.reshard_group;
    const int64_t part = index % op_.reshard_group;
    const int64_t shares = owner_->group_size() / op_.reshard_group;
    std::memcpy(whole + (part * shares + share) * slice_bytes,
                owner_->ReshardSlot(op_.reshard_slot) + share * slice_bytes, slice_bytes);
  }

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
  std::pair<int, v1::Operation> Place() const override { return {unit_, v1::REDUCE_WAIT}; }

 private:
  const int unit_;
  const int slot_;
  const uint64_t tenancy_;
};

class ShmCollectives::ReduceOperation final : public Operation {
 public:
  ReduceOperation(ShmCollectives* owner, uint64_t tag, const ReduceScatterOp& op,
                  const DivideFactors& divide, int slot, uint64_t tenancy, OpTiming* timing)
      : Operation(owner, tag),
        op_(op),
        divide_(divide),
        slot_(slot),
        tenancy_(tenancy),
        timing_(timing) {}

  bool Advance() override {
    if (!owner_->AllReached(slot_, /*left=*/false, tenancy_)) return false;
    owner_->faults_.Hit("reduce");
    const Stopwatch watch;
    const int64_t offset = owner_->group().index * op_.shard.numel * DTypeBytes(op_.gradient_dtype);
    const int first = op_.replicate ? 0 : owner_->group_start_;
    const int end = op_.replicate ? owner_->sync_.size() : first + owner_->group_size();
    std::vector<const void*> slices;
    for (int rank = first; rank < end; ++rank) {
      slices.push_back((op_.accumulation_slot < 0
                            ? owner_->GradientOf(rank, op_.gradient_slot)
                            : owner_->AccumulatedOf(rank, op_.accumulation_slot)) +
                       offset);
    }
    ReduceSlice(slices, op_.shard.numel,
                {.gradient_dtype = op_.gradient_dtype,
                 .reduce_dtype = op_.reduce_dtype,
                 .shard_dtype = op_.shard.dtype,
                 .divide = divide_,
                 .accumulate = op_.accumulate,
                 .group = owner_->group_size()},
                op_.shard.data);
    if (timing_ != nullptr) timing_->work_us = watch.ElapsedUs();
    owner_->sync_.Announce(owner_->Own(slot_).left, tenancy_);
    owner_->faults_.Hit("reduce_read");
    return true;
  }
  std::string What() const override { return owner_->Describe(tag()); }
  std::vector<int> Missing() const override { return owner_->Below(slot_, false, tenancy_); }

 private:
  const ReduceScatterOp op_;
  const DivideFactors divide_;
  const int slot_;
  const uint64_t tenancy_;
  OpTiming* const timing_;
};

// The shards' sum over the groups, by way of the ranks' gradient slots.
class ShmCollectives::SumReplicasOperation final : public Operation {
 public:
  SumReplicasOperation(ShmCollectives* owner, uint64_t tag, int gradient_slot, uint64_t tenancy,
                       const ShardSpan& shard)
      : Operation(owner, tag),
        gradient_slot_(gradient_slot),
        slot_(owner->sync_.gradient_slot(gradient_slot)),
        tenancy_(tenancy),
        shard_(shard) {}

  bool Advance() override {
    if (!written_) {
      if (!owner_->AllReached(slot_, /*left=*/true, tenancy_ - 1)) return false;
      std::memcpy(owner_->Gradient(gradient_slot_), shard_.data, shard_.bytes());
      written_ = true;
      owner_->sync_.Announce(owner_->Own(slot_).entered, tenancy_);
    }
    const bool complete = owner_->AllReached(slot_, /*left=*/false, tenancy_);
    if (!complete) return false;
    std::vector<const void*> shards;
    for (int rank = owner_->group().index; rank < owner_->sync_.size();
         rank += owner_->group_size())
      shards.push_back(owner_->GradientOf(rank, gradient_slot_));
    ReduceOptions options;
    options.gradient_dtype = options.reduce_dtype = options.shard_dtype = shard_.dtype;
    ReduceSlice(shards, shard_.numel, options, shard_.data);
    owner_->sync_.Announce(owner_->Own(slot_).left, tenancy_);
    return true;
  }
  std::string What() const override { return owner_->Describe(tag()); }
  std::vector<int> Missing() const override {
    return written_ ? owner_->Below(slot_, false, tenancy_)
                    : owner_->Below(slot_, true, tenancy_ - 1);
  }

 private:
  const int gradient_slot_;
  const int slot_;
  const uint64_t tenancy_;
  const ShardSpan shard_;
  bool written_ = false;
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
      group_start_(options_.group.ranks.front() - options_.sync.first_rank),
      resident_slot_(ResidentSlots(options_.layout, options_.unit_names.size())) {
  sync_.record(sync_.index()).fingerprint.store(options_.fingerprint, std::memory_order_release);
  if (options_.first_timeout > absl::ZeroDuration()) sync_.set_timeout(options_.first_timeout);
  if (options_.hosts != nullptr) options_.hosts->SetOnProgress([this] { sync_.Wake(); });
}

ShmCollectives::~ShmCollectives() {
  if (options_.hosts != nullptr) options_.hosts->Close();
}

bool ShmCollectives::AllReached(int slot, bool left, uint64_t tenancy) const {
  const auto [first, end] = UsersOf(slot);
  for (int rank = first; rank < end; ++rank) {
    const SlotControl& control = sync_.slot(rank, slot);
    if ((left ? control.left : control.entered).load(std::memory_order_acquire) < tenancy)
      return false;
  }
  return true;
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
  TESSERA_RETURN_IF_ERROR(CheckHosts());
  return sync_.Check();
}

absl::Status ShmCollectives::WaitFor(Operation& operation) {
  const std::pair<int, v1::Operation> place = operation.Place();
  const PositionPublisher::Waiting waiting(
      options_.position, place.first, place.second,
      place.second == v1::OPERATION_UNSPECIFIED ? operation.What() : "");
  faults_.Hit("unshard_wait");
  TESSERA_RETURN_IF_ERROR(
      EndWait(sync_.WaitUntil(
                  [&]() -> absl::StatusOr<bool> {
                    AdvancePending();
                    if (operation.done) return true;
                    TESSERA_RETURN_IF_ERROR(CheckAgreement(operation.tag()));
                    TESSERA_RETURN_IF_ERROR(CheckHosts());
                    return false;
                  },
                  [&] { return operation.What(); }, [&] { return operation.Missing(); }),
              operation.tag(), [&] { return operation.Missing(); }));
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
  if (slot < 0 || !Resident()) return;
  faults_.Hit("unshard_write");
  sync_.Announce(Own(slot).entered, ++tenancy_[slot]);
  faults_.Hit("unshard_written");
}

void ShmCollectives::ReleaseUnsharded(int slot) {
  faults_.Hit("lease_release");
  if (Resident()) return;
  pending_.remove_if([&](const std::shared_ptr<Operation>& operation) {
    const auto* gather = dynamic_cast<const AllGatherOperation*>(operation.get());
    return gather != nullptr && gather->slot() == slot;
  });
  sync_.Announce(Own(slot).left, tenancy_[slot]);
}

absl::StatusOr<Event> ShmCollectives::AcquireGradient(int unit, int gradient_slot,
                                                      Stream* /*stream*/) {
  faults_.Hit("gradient_acquire");
  const int slot = sync_.gradient_slot(gradient_slot);
  return Start(std::make_shared<AcquireOperation>(this, unit, slot, ++tenancy_[slot]));
}

absl::StatusOr<Event> ShmCollectives::ReduceScatter(const ReduceScatterOp& op, Stream* /*stream*/,
                                                    OpTiming* timing) {
  const uint64_t tag = Issue(Kind::kReduce, op.unit);
  const int slot = sync_.gradient_slot(op.gradient_slot);
  faults_.Hit("reduce_ready");
  sync_.Announce(Own(slot).entered, tenancy_[slot]);
  if (options_.hosts != nullptr && op.replicate) return Start(MakeHostReduce(tag, op, timing));
  return Start(MakeReduce(tag, op, DivideOf(op), timing));
}

DivideFactors ShmCollectives::DivideOf(const ReduceScatterOp& op) const {
  return DivideFactorsFor(op.reduce_dtype, op.DivisorOr(group_size() * options_.group.replicas));
}

std::shared_ptr<ShmCollectives::Operation> ShmCollectives::MakeReduce(uint64_t tag,
                                                                      const ReduceScatterOp& op,
                                                                      const DivideFactors& divide,
                                                                      OpTiming* timing) {
  const int slot = sync_.gradient_slot(op.gradient_slot);
  return std::make_shared<ReduceOperation>(this, tag, op, divide, slot, tenancy_[slot], timing);
}

absl::StatusOr<Event> ShmCollectives::SumReplicas(int unit, int gradient_slot,
                                                  const ShardSpan& shard, Stream* /*stream*/) {
  if (shard.bytes() > options_.layout.gradient_slots(gradient_slot).bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "unit ", options_.unit_names[unit], " has shards of ", shard.bytes(),
        " bytes, which its gradient buffer cannot hold to be summed over the replicas; end each ",
        "micro-batch with all_reduce = true, or keep its gradients with synchronize = false"));
  }
  const uint64_t tag = Issue(Kind::kSumReplicas, unit);
  const int slot = sync_.gradient_slot(gradient_slot);
  auto sum =
      std::make_shared<SumReplicasOperation>(this, tag, gradient_slot, ++tenancy_[slot], shard);
  return Start(options_.hosts == nullptr ? std::move(sum) : MakeHostSum(std::move(sum), shard));
}

absl::Status ShmCollectives::GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                                          char* whole) {
  const int64_t bytes = shard.bytes();
  if (group_size() == 1) {  // a slot of a narrower dtype may be shorter than the one shard
    if (whole != nullptr) std::memcpy(whole, shard.data, bytes);
    return absl::OkStatus();
  }
  // The slot may be of a narrower dtype than the shards, and then does not hold one at once.
  const int64_t piece = std::min(bytes, options_.layout.gradient_slots(gradient_slot).bytes());
  for (int64_t begin = 0; begin < bytes; begin += piece) {
    const int64_t count = std::min(piece, bytes - begin);
    TESSERA_RETURN_IF_ERROR(GatherPiece(unit, gradient_slot, shard.data + begin, count,
                                        whole == nullptr ? nullptr : whole + begin,
                                        /*stride=*/bytes));
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::GatherPiece(int unit, int gradient_slot, const char* piece,
                                         int64_t bytes, char* whole, int64_t stride) {
  TESSERA_ASSIGN_OR_RETURN(const Event acquired, AcquireGradient(unit, gradient_slot, nullptr));
  TESSERA_RETURN_IF_ERROR(acquired.Wait());
  const uint64_t tag = Issue(Kind::kGatherShards, unit);
  const int slot = sync_.gradient_slot(gradient_slot);
  std::memcpy(Gradient(gradient_slot), piece, bytes);
  sync_.Announce(Own(slot).entered, tenancy_[slot]);
  TESSERA_RETURN_IF_ERROR(
      Start(std::make_shared<ArriveOperation>(this, tag, slot, tenancy_[slot])).Wait());
  for (int index = 0; whole != nullptr && index < group_size(); ++index) {
    std::memcpy(whole + index * stride, GradientOf(group_start_ + index, gradient_slot), bytes);
  }
  sync_.Announce(Own(slot).left, tenancy_[slot]);
  return absl::OkStatus();
}

}  // namespace tessera
