// What shared memory does not reach: sums over the job's hosts, and exchanges between them.
#include <cstring>
#include <memory>
#include <utility>

#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/collectives/shm_collectives.h"
#include "worker/collectives/shm_operation.h"

namespace tessera {
namespace {

// What is added in.
DType SumDType(const ReduceScatterOp& op) {
  const bool wide = op.gradient_dtype == v1::FLOAT64 || op.reduce_dtype == v1::FLOAT64;
  return wide ? v1::FLOAT64 : v1::FLOAT32;
}

}  // namespace

// A reduction whose sum over this host goes to the staging, from there over all hosts, and only
// then is divided and rounded.
class ShmCollectives::HostReduceOperation final : public Operation {
 public:
  HostReduceOperation(ShmCollectives* owner, uint64_t tag, const ReduceScatterOp& op, int slot,
                      uint64_t tenancy, OpTiming* timing)
      : Operation(owner, tag),
        hosts_(*owner->options_.hosts),
        turn_(hosts_.Issue()),
        op_(op),
        divide_(owner->DivideOf(op)),
        local_op_(op) {
    local_op_.shard = {hosts_.staging(), op.shard.numel, SumDType(op)};
    local_op_.reduce_dtype = SumDType(op);
    local_op_.accumulate = false;
    local_ = owner->MakeReduce(tag, local_op_, {.before = divide_.before}, slot, tenancy, timing);
  }

  bool Advance() override {
    // The staging is the operation's whose turn it is.
    if (!hosts_.Reached(turn_)) return false;
    if (!started_) {
      if (!local_->Advance()) return false;
      hosts_.StartSum(op_.shard.numel, SumDType(op_), What());
      started_ = true;
    }
    if (!hosts_.Passed()) return false;
    local_op_.accumulate = op_.accumulate;
    owner_->Finish({.before = 1, .after = divide_.after}, local_op_.shard, op_);
    hosts_.End();
    return true;
  }
  std::string What() const override { return local_->What(); }
  std::vector<int> Missing() const override {
    return started_ ? std::vector<int>() : local_->Missing();
  }

 private:
  HostTurns& hosts_;
  const int64_t turn_;
  const ReduceScatterOp op_;
  const DivideFactors divide_;
  ReduceScatterOp local_op_;
  std::shared_ptr<Operation> local_;
  bool started_ = false;
};

// The shards' sum over the groups of this host, in the shard, and then over all hosts.
class ShmCollectives::HostSumOperation final : public Operation {
 public:
  HostSumOperation(ShmCollectives* owner, std::shared_ptr<Operation> local, const ShardSpan& shard)
      : Operation(owner, local->tag()),
        hosts_(*owner->options_.hosts),
        turn_(hosts_.Issue()),
        local_(std::move(local)),
        shard_(shard) {}

  bool Advance() override {
    if (!summed_) summed_ = local_->Advance();
    if (!summed_ || !hosts_.Reached(turn_)) return false;
    if (!started_) {
      std::memcpy(hosts_.staging(), shard_.data, shard_.bytes());
      hosts_.StartSum(shard_.numel, shard_.dtype, What());
      started_ = true;
    }
    if (!hosts_.Passed()) return false;
    std::memcpy(shard_.data, hosts_.staging(), shard_.bytes());
    hosts_.End();
    return true;
  }
  std::string What() const override { return local_->What(); }
  std::vector<int> Missing() const override {
    return summed_ ? std::vector<int>() : local_->Missing();
  }

 private:
  HostTurns& hosts_;
  const int64_t turn_;
  const std::shared_ptr<Operation> local_;
  const ShardSpan shard_;
  bool summed_ = false, started_ = false;
};
