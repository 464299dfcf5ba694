// Communication hooks: a program's own way to average the gradients of units over the ranks, in
// place of Session's. FSDP's register_comm_hook, with its contract:
//
//   TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(session, Bf16CompressHook()));
//
// A hook is registered once, before the first step, by every rank, for all units. It is called in
// Session::Reduce, unit by unit, in the same order on every rank. It communicates and divides
// itself, through the group that it is given, and Reduce waits for it.
//
// Sharded units: `gradient` is the whole unit's, padded to group.size() shards, and `output` this
// rank's shard, which the hook fills. no_shard: `output` is null, and `gradient` becomes the
// average in place. Parameters that got no gradient, and padding, are zeros in `gradient`.
//
// dtypes: `gradient` and `output` are in reduce_dtype, and the session casts the result to the
// unit's gradient_dtype. With `low_precision` the session casts nothing before: `gradient` is in
// param_dtype (no_shard: gradient_dtype) and `output` in gradient_dtype.
//
// What a hook needs beside the planned buffers is one unit's gradients, in memory of the process
// that no forecast counts.
#ifndef TESSERA_WORKER_COMMUNICATION_HOOKS_H_
#define TESSERA_WORKER_COMMUNICATION_HOOKS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/elements.h"
#include "worker/session.h"
#include "worker/world_sums.h"

namespace tessera {

// The ranks that average with each other, as a hook sees them. Not kept after the hook returns.
class CommunicationGroup {
 public:
  CommunicationGroup(WorldSums* sums, WorldSums::World world, int unit, double divide_factor);

  int size() const { return world_.world_size; }
  int index() const { return world_.rank; }
  // Index of the unit whose gradients these are, for hooks that keep something of each.
  int unit() const { return unit_; }
  // An average is a sum whose terms are divided by `pre` and whose result is divided by `post`: the
  // factors of FSDP and FairScale (semantics.md 3.5), or 1 and mixed_precision.divide_factor.
  double pre_divide_factor() const { return pre_; }
  double post_divide_factor() const { return post_; }

  // Sums over the group, in rank order in float32 (float64 for float64), rounded once to the
  // result's dtype. Every rank makes the same calls. Errors: as any wait of a session.
  absl::Status AllReduce(const FlatTensor& tensor) { return sums_->AllReduce(tensor); }
  // `input` is size() runs as long as `output`, which becomes the sum of all ranks' run `index`.
  absl::Status ReduceScatter(const FlatTensor& input, const FlatTensor& output) {
    return sums_->ReduceScatter(input, output);
  }

 private:
  WorldSums* const sums_;
  const WorldSums::World world_;
  const int unit_;
  double pre_ = 1;
  double post_ = 1;
};

struct CommunicationHook {
  // All ranks' must be equal: at most 100 bytes, not empty.
  std::string name;
  bool low_precision = false;
  // An error ends the session.
  std::function<absl::Status(CommunicationGroup& group, const FlatTensor& gradient,
                             const FlatTensor* output)>
      run;
};

// FSDP's allreduce_hook (for no_shard) and reduce_scatter_hook (for the others): what the session
// does anyway, but for the division of float16's factors in every dtype.
CommunicationHook AllReduceHook();
CommunicationHook ReduceScatterHook();
// FSDP's fp16_compress_hook and bf16_compress_hook, for every strategy: the gradients are sent in
// 16 bits, whatever reduce_dtype.
CommunicationHook Fp16CompressHook();
CommunicationHook Bf16CompressHook();

// All ranks call it. INVALID_ARGUMENT: no name, or nothing to run; or another hook than another
// rank's (names both). FAILED_PRECONDITION: after the first step began, a second time, or with a
// hybrid strategy, in which a gradient goes through two collectives. UNIMPLEMENTED: on GPUs.
absl::Status RegisterCommunicationHook(Session& session, CommunicationHook hook);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMMUNICATION_HOOKS_H_
