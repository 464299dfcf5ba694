// What a step sends, if every collective is a ring: all-gather and reduce-scatter of B bytes over g
// ranks send (g-1)/g x B from each, an all-reduce 2(g-1)/g x B.
//
// For each micro-batch a unit is gathered for its forward over its shard group, and for its
// backward again: over the shard group, over its reshard group, or not at all where it stays whole
// (the root, shard_grad_op). With shard_grad_op and micro-batches that do not synchronise it is
// gathered once a step. Its gradients are reduce-scattered over the shard group in reduce_dtype,
// and the shard all-reduced over the replicas, `reductions` times; units that nothing trains are
// not. Padding travels too. So with N padded, S ranks a shard group and R replicas, a rank sends
//   full_shard       (S-1)/S x (sp x (2N - N_root) + sr x N)
//   shard_grad_op    (S-1)/S x (sp + sr) x N
//   no_shard         2(W-1)/W x sr x N
//   with replicas    as above, and 2(R-1)/R x sr x N/S between them
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_WIRE_H_
#define TESSERA_COORDINATOR_WIRE_H_

#include <cstdint>
#include <map>
#include <string>

#include "tessera/v1/plan.pb.h"

namespace tessera {

struct StepTraffic {
  // Sent by one rank in one step, by the length of the run of ranks that the ring goes over: the
  // shard group, or a reshard group.
  std::map<int, int64_t> shard_ring_bytes;
  int64_t replica_ring_bytes = 0;
  int64_t collectives = 0;  // that one rank takes part in
  // The largest buffer of one collective, and the unit's index; -1: nothing is sent.
  int64_t largest_message_bytes = 0;
  int largest_message_unit = -1;

  int64_t TotalBytes() const;
};

StepTraffic TrafficOf(const v1::Plan& plan, const v1::Layout& layout, int64_t micro_batches,
                      int64_t reductions);

// What of it `rank` sends to a rank of its own host and of another one: it sends all to the next of
// its ring.
struct RankTraffic {
  int64_t intra_host_bytes = 0;
  int64_t inter_host_bytes = 0;
};
RankTraffic TrafficOfRank(const StepTraffic& traffic, const v1::Layout& layout, int rank);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_WIRE_H_
