// Collectives: moves the bytes of units between the ranks of a group, and owns the memory that it
// moves: the unsharded and gradient buffers (slots) that the layout planned.
//
//   TESSERA_ASSIGN_OR_RETURN(const Event whole, collectives->AllGather(
//       {.unit = 3, .slot = 1, .shard = master}, stream, &timing));
//   TESSERA_RETURN_IF_ERROR(whole.Wait());
//   ... collectives->Unsharded(1) holds the whole unit ...
//   collectives->ReleaseUnsharded(1);
//
// A slot has one tenant at a time. No rank writes a byte of a slot's next tenant before every rank
// that shares the memory has released the last one; no rank writes into its gradient buffer before
// every rank has read its slice of it. Whoever owns the memory sees to that: on shared memory by
// lease words, on GPUs, where each rank has buffers of its own, by the order of streams.
//
// Every rank of the job issues the same operations in the same order. Calls do not wait, but for
// those that say so; the events do. Errors of waits: UNAVAILABLE (a rank or the agent is gone),
// DEADLINE_EXCEEDED (names the ranks that are missing), FAILED_PRECONDITION with ORDER_MISMATCH (a
// rank issued something else; names it and both units), or what Abort or Interrupt gave.
//
// Thread-safety: one thread calls; Interrupt may be called from any.
#ifndef TESSERA_WORKER_COLLECTIVES_COLLECTIVES_H_
#define TESSERA_WORKER_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "worker/device/device.h"
#include "worker/shard_span.h"

namespace tessera {

// Who takes part. Executor and layout know the index in the group, never the world rank.
struct Group {
  std::vector<int> ranks;  // world ranks, ascending
  int index = 0;           // of this process in `ranks`
  std::vector<int> hosts;  // host of each of `ranks`
  // Copies of the whole: shard groups of the job. Gradients are averaged over the ranks of all.
  int replicas = 1;
};

struct AllGatherOp {
  int unit = 0;  // for errors and agreement
  int slot = 0;
  ShardSpan shard;                  // this rank's master shard; only read
  DType param_dtype = v1::FLOAT32;  // of the unsharded unit
  // Not -1: this rank's slice comes from what Reshard kept in that slot, not from the shard.
  int reshard_slot = -1;
  int reshard_group = 1;
};

struct ReduceScatterOp {
  int unit = 0;
  int gradient_slot = 0;
  ShardSpan shard;                     // this rank's reduced gradient shard
  DType gradient_dtype = v1::FLOAT32;  // of the gradient slot
  DType reduce_dtype = v1::FLOAT32;    // what the average is rounded to, once
  // Add the result to `shard` instead of overwriting it.
  bool accumulate = false;
  // Sum over the ranks of all shard groups, not of this rank's alone. (The average is over all in
  // any case: parts of it without this are summed by SumReplicas.)
  bool replicate = true;
};

// Where an operation's own time went, in microseconds; final when its event has passed.
struct OpTiming {
  double work_us = 0;
};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual const Group& group() const = 0;

  // The buffer of an unsharded slot, or of this rank's gradient slot. Valid as long as the
  // Collectives.
  virtual void* Unsharded(int slot) = 0;
  virtual void* Gradient(int gradient_slot) = 0;

  // Makes the unit the slot's next tenant: casts the shard into this rank's slice as soon as the
  // last tenant has been released by all, and passes when every rank's slice is there. The shard
  // must not change before.
  virtual absl::StatusOr<Event> AllGather(const AllGatherOp& op, Stream* stream,
                                          OpTiming* timing) = 0;
  // This rank no longer reads the slot's tenant. Also ends an AllGather that has not passed yet.
  virtual void ReleaseUnsharded(int slot) = 0;

  // This rank has written its shard: when it was first filled, and after each update. Where units
  // are resident the others may now read its slice, and an AllGather waits for as many of these
  // from every rank as this rank has done; elsewhere nothing happens.
  virtual void PublishShard(int unit) = 0;

  // Makes the slot ready for the next tenant's gradients: passes when every rank has read the last
  // ones.
  virtual absl::StatusOr<Event> AcquireGradient(int unit, int gradient_slot, Stream* stream) = 0;
  // Fills a part of this rank's gradient slot with zeros, after what was put on `stream` before.
  virtual absl::Status ZeroGradient(int gradient_slot, int64_t offset_bytes, int64_t bytes,
                                    Stream* stream) = 0;
  // The slot's gradients are complete. Passes when this rank has reduced its slice of all ranks'
  // gradients: summed in rank order within each shard group, then over the groups in their order,
  // in float32. `shard` and `timing` must live until then.
  virtual absl::StatusOr<Event> ReduceScatter(const ReduceScatterOp& op, Stream* stream,
                                              OpTiming* timing) = 0;

  // Sums over the shard groups, in their order, what ReduceScatter without `replicate` has left in
  // `shard`. Passes when `shard` has the sum. The shards pass through the gradient slot, which must
  // be at least a shard long.
  virtual absl::StatusOr<Event> SumReplicas(int unit, int gradient_slot, const ShardSpan& shard,
                                            Stream* stream) = 0;

  // Keeps this rank's part of the whole unit of `bytes` in `slot`: `group` consecutive ranks of the
  // shard group have one part each, in their order.
  virtual void Reshard(int slot, int reshard_slot, int group, int64_t bytes) = 0;

  // Gathers every rank's master shard as it is, in its dtype, into `whole` (shard.numel x ranks
  // elements; null on a rank that only takes part). Waits. The shards pass through the gradient
  // slot, which must be at least a shard long.
  virtual absl::Status GatherShards(int unit, int gradient_slot, const ShardSpan& shard,
                                    char* whole) = 0;

  // Gives every rank of the job every rank's `payload` (at most kExchangeBytes), in world rank
  // order. Waits. `what` names the moment in errors.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view payload,
                                                            absl::string_view what) = 0;

  // Does what can be done of the pending operations without waiting. Errors: what a wait would end
  // with by now.
  virtual absl::Status Progress() = 0;

  // Ends every rank's waits: this rank is lost. Interrupt ends only this rank's.
  virtual void Abort(const absl::Status& status) = 0;
  virtual void Interrupt(const absl::Status& status) = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_COLLECTIVES_COLLECTIVES_H_
