// What shared memory does not reach: sums over the job's hosts, and exchanges between them.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  HostReduceOperation(ShmCollectives* owner, uint64_t tag, const ReduceScatterOp& op,
                      OpTiming* timing)
      : Operation(owner, tag),
        hosts_(*owner->options_.hosts),
        turn_(hosts_.Issue()),
        op_(op),
        divide_(owner->DivideOf(op)),
        sum_{hosts_.staging(), op.shard.numel, SumDType(op)} {
    ReduceScatterOp local = op;
    local.shard = sum_;
    local.reduce_dtype = sum_.dtype;
    local.accumulate = false;
    local_ = owner->MakeReduce(tag, local, {.before = divide_.before, .after = 1}, timing);
  }

  bool Advance() override {
    // The staging belongs to the operation whose turn it is.
    if (!hosts_.Reached(turn_)) return false;
    if (!started_) {
      if (!local_->Advance()) return false;
      hosts_.StartSum(sum_.numel, sum_.dtype, What());
      started_ = true;
    }
    if (!hosts_.Passed()) return false;
    const void* const sum = sum_.data;
    ReduceSlice({&sum, 1}, sum_.numel,
                {.gradient_dtype = sum_.dtype,
                 .reduce_dtype = op_.reduce_dtype,
                 .shard_dtype = op_.shard.dtype,
                 .divide = {.before = 1, .after = divide_.after},
                 .accumulate = op_.accumulate,
                 .group = 0},
                op_.shard.data);
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
  const ShardSpan sum_;
  std::shared_ptr<Operation> local_;  // the sum over this host
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
        shard_(shard),
        sum_dtype_(shard.dtype == v1::FLOAT64 ? v1::FLOAT64 : v1::FLOAT32) {}

  bool Advance() override {
    if (!summed_) summed_ = local_->Advance();
    if (!summed_ || !hosts_.Reached(turn_)) return false;
    if (!started_) {
      CastElements(shard_.data, shard_.dtype, shard_.numel, sum_dtype_, hosts_.staging());
      hosts_.StartSum(shard_.numel, sum_dtype_, What());
      started_ = true;
    }
    if (!hosts_.Passed()) return false;
    CastElements(hosts_.staging(), sum_dtype_, shard_.numel, shard_.dtype, shard_.data);
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
  const DType sum_dtype_;
  bool summed_ = false, started_ = false;
};

std::shared_ptr<ShmCollectives::Operation> ShmCollectives::MakeHostReduce(uint64_t tag,
                                                                          const ReduceScatterOp& op,
                                                                          OpTiming* timing) {
  return std::make_shared<HostReduceOperation>(this, tag, op, timing);
}

std::shared_ptr<ShmCollectives::Operation> ShmCollectives::MakeHostSum(
    std::shared_ptr<Operation> local, const ShardSpan& shard) {
  return std::make_shared<HostSumOperation>(this, std::move(local), shard);
}

absl::Status ShmCollectives::CheckHosts() const {
  return options_.hosts == nullptr ? absl::OkStatus() : options_.hosts->Check();
}

void ShmCollectives::Abort(const absl::Status& status) {
  sync_.Abort(status);
  if (options_.hosts != nullptr) options_.hosts->Abort(status);
}

void ShmCollectives::Interrupt(const absl::Status& status) {
  sync_.Interrupt(status);
  if (options_.hosts != nullptr) options_.hosts->Abort(status);
}

absl::StatusOr<std::vector<std::string>> ShmCollectives::GatherHosts(
    const std::vector<std::string>& own, int64_t turn, absl::string_view what) {
  HostTurns& hosts = *options_.hosts;
  bool started = false;
  const auto passed = [&]() -> absl::StatusOr<bool> {
    AdvancePending();
    if (!started && hosts.Reached(turn)) {
      hosts.StartGather(absl::StrJoin(own, ""), what);
      started = true;
    }
    if (started && hosts.Passed()) return true;
    TESSERA_RETURN_IF_ERROR(hosts.Check());
    return false;
  };
  // Other hosts' ranks are missed by the links. Before that, what is pending has its turn.
  const auto missing = [&] {
    std::vector<int> ranks;
    for (const std::shared_ptr<Operation>& operation : pending_) {
      if (!ranks.empty() || started) break;
      ranks = operation->Missing();
    }
    return ranks;
  };
  TESSERA_RETURN_IF_ERROR(sync_.WaitUntil(
      passed, [&] { return std::string(what); }, missing));
  const std::vector<std::string> gathered = hosts.TakeGathered();
  hosts.End();
  const size_t bytes = own.front().size();
  std::vector<std::string> payloads;
  for (const std::string& of_host : gathered) {
    if (of_host.size() != bytes * own.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": a host's ranks sent ", of_host.size(), " bytes, this one's ",
                       bytes * own.size(), "; are the hosts' programs of one build?"));
    }
    for (size_t rank = 0; rank < own.size(); ++rank)
      payloads.push_back(of_host.substr(rank * bytes, bytes));
  }
  return payloads;
}

}  // namespace tessera
