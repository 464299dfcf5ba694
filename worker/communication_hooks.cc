#include "worker/communication_hooks.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/session_impl.h"

namespace tessera {
namespace {

constexpr size_t kLongestName = 100;

// A tensor in memory of its own, which lasts for the next unit.
FlatTensor In(std::vector<char>& memory, int64_t numel, DType dtype) {
  memory.resize(std::max<size_t>(memory.size(), numel * DTypeBytes(dtype)));
  return {memory.data(), numel, dtype};
}

absl::Status Average(CommunicationGroup& group, const FlatTensor& gradient,
                     const FlatTensor* output) {
  DivideElements(gradient, group.pre_divide_factor());
  const FlatTensor& result = output != nullptr ? *output : gradient;
  TESSERA_RETURN_IF_ERROR(output != nullptr ? group.ReduceScatter(gradient, *output)
                                            : group.AllReduce(gradient));
  DivideElements(result, group.post_divide_factor());
  return absl::OkStatus();
}

CommunicationHook CompressHook(const char* name, DType dtype) {
  const auto run = [dtype](CommunicationGroup& group, const FlatTensor& gradient,
                           const FlatTensor* output) -> absl::Status {
    std::vector<char> memory, shard_memory;
    const FlatTensor compressed = In(memory, gradient.numel, dtype);
    CastElements(gradient, compressed);
    if (output == nullptr) {
      TESSERA_RETURN_IF_ERROR(Average(group, compressed, nullptr));
      CastElements(compressed, gradient);
      return absl::OkStatus();
    }
    const FlatTensor shard = In(shard_memory, output->numel, dtype);
    TESSERA_RETURN_IF_ERROR(Average(group, compressed, &shard));
    CastElements(shard, *output);
    return absl::OkStatus();
  };
  return {.name = name, .low_precision = true, .run = run};
}

// Runs the hook on one unit after another.
class HookReduction {
 public:
  HookReduction(CommunicationHook hook, const SessionParts& parts)
      : hook_(std::move(hook)),
        parts_(parts),
        world_{parts.assignment.rank(), parts.assignment.world_size()} {}

  absl::Status Reduce(const ReduceScatterOp& op, int64_t padded_numel) {
    Collectives& collectives = *parts_.collectives;
    void* const from = op.accumulation_slot < 0 ? collectives.Gradient(op.gradient_slot)
                                                : collectives.Accumulated(op.accumulation_slot);
    const FlatTensor written = {from, padded_numel, op.gradient_dtype};
    const FlatTensor shard = {op.shard.data, op.shard.numel, op.shard.dtype};
    // At one rank nothing is sharded, but a job that asks for shards gets one of everything.
    const bool sharded =
        shard.numel < padded_numel ||
        (world_.world_size == 1 && parts_.layout.sharding_strategy() != v1::NO_SHARD);
    const DType low = sharded ? op.gradient_dtype : shard.dtype;
    const FlatTensor gradient =
        In(gradient_, padded_numel, hook_.low_precision ? low : op.reduce_dtype);
    const FlatTensor output =
        In(output_, sharded ? shard.numel : 0, hook_.low_precision ? shard.dtype : op.reduce_dtype);
    CastElements(written, gradient);
    TESSERA_RETURN_IF_ERROR(collectives.ReleaseGradient(op.gradient_slot));
    WorldSums sums(&collectives, world_, op.unit, op.gradient_slot,
                   parts_.layout.gradient_slots(op.gradient_slot).bytes());
    CommunicationGroup group(&sums, world_, op.unit, parts_.spec.mixed_precision().divide_factor());
    TESSERA_RETURN_IF_ERROR(hook_.run(group, gradient, sharded ? &output : nullptr));
    const FlatTensor& result = sharded ? output : gradient;
    op.accumulate ? AddElements(result, shard) : CastElements(result, shard);
    return absl::OkStatus();
  }

 private:
  const CommunicationHook hook_;
  const SessionParts& parts_;
  const WorldSums::World world_;
  std::vector<char> gradient_, output_;
};

absl::Status CheckHook(const CommunicationHook& hook, const SessionParts& parts) {
  if (hook.name.empty() || hook.name.size() > kLongestName) {
    return absl::InvalidArgumentError(absl::StrCat("a communication hook's name has ",
                                                   hook.name.size(), " bytes; give it 1 to ",
                                                   kLongestName));
  }
  if (hook.run == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the communication hook \"", hook.name, "\" has nothing to run"));
  }
  if (parts.layout.device() == v1::CUDA) {
    return absl::UnimplementedError("communication hooks run on CPUs; give the job device cpu");
  }
  if (parts.layout.shard_count() > 1 && parts.layout.replica_count() > 1) {
    return absl::FailedPreconditionError(
        "a communication hook sees one collective, and a hybrid strategy has two; give the job "
        "mesh.strategy full_shard, shard_grad_op or no_shard, and mesh.replicas 1");
  }
  return absl::OkStatus();
}

}  // namespace

CommunicationGroup::CommunicationGroup(WorldSums* sums, WorldSums::World world, int unit,
                                       double divide_factor)
    : sums_(sums), world_(world), unit_(unit), post_(divide_factor) {
  if (divide_factor != 0) return;
  const DivideFactors factors = DivideFactorsFor(v1::FLOAT16, world.world_size);
  pre_ = factors.before;
  post_ = factors.after;
}

CommunicationHook AllReduceHook() {
  const auto run = [](CommunicationGroup& group, const FlatTensor& gradient,
                      const FlatTensor* output) -> absl::Status {
    if (output == nullptr) return Average(group, gradient, nullptr);
    return absl::FailedPreconditionError(
        "the hook allreduce is for mesh.strategy no_shard; register ReduceScatterHook");
  };
  return {.name = "allreduce", .low_precision = false, .run = run};
}

CommunicationHook ReduceScatterHook() {
  const auto run = [](CommunicationGroup& group, const FlatTensor& gradient,
                      const FlatTensor* output) -> absl::Status {
    if (output != nullptr) return Average(group, gradient, output);
    return absl::FailedPreconditionError(
        "the hook reduce_scatter is for sharded units, and these are whole on every rank; register "
        "AllReduceHook");
  };
  return {.name = "reduce_scatter", .low_precision = false, .run = run};
}

CommunicationHook Fp16CompressHook() { return CompressHook("fp16_compress", v1::FLOAT16); }
CommunicationHook Bf16CompressHook() { return CompressHook("bf16_compress", v1::BFLOAT16); }

absl::Status RegisterCommunicationHook(Session& session, CommunicationHook hook) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.Keep(CheckHook(hook, impl.parts())));
  if (impl.has_reduce_hook() || impl.begun()) {
    return impl.Keep(absl::FailedPreconditionError(absl::StrCat(
        "the communication hook \"", hook.name, "\" is registered ",
        impl.has_reduce_hook() ? "after another; a session has one" : "after the first step began",
        "; register it once, before the first step")));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> names,
      impl.Meet("RegisterCommunicationHook",
                absl::StrCat(hook.name, std::string(kLongestName - hook.name.size(), '\0'))));
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const std::string name = names[rank].c_str();
    if (name == hook.name) continue;
    return impl.Keep(absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " registers the communication hook \"", name, "\", rank ",
                     session.rank(), " \"", hook.name, "\"; register the same one on every rank")));
  }
  const auto reduction = std::make_shared<HookReduction>(std::move(hook), impl.parts());
  impl.SetReduceHook([reduction](const ReduceScatterOp& op, int64_t padded_numel) {
    return reduction->Reduce(op, padded_numel);
  });
  return absl::OkStatus();
}

}  // namespace tessera
