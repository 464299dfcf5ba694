#include "coordinator/wire.h"

#include <utility>

#include "common/dtype.h"
#include "coordinator/layout.h"
#include "coordinator/mesh.h"

namespace tessera {
namespace {

int64_t CeilDivide(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

class Counter {
 public:
  Counter(const v1::Plan& plan, const v1::Layout& layout) : plan_(plan), layout_(layout) {}

  void Gather(int unit, int group, int64_t times) {
    const int64_t bytes =
        layout_.units(unit).padded_numel() * DTypeBytes(plan_.units(unit).param_dtype());
    if (group == 1 || bytes == 0) return;
    traffic_.shard_ring_bytes[group] += times * (bytes - bytes / group);
    Note(unit, bytes, times);
  }

  void Reduce(int unit, int64_t times) {
    const v1::UnitLayout& layout = layout_.units(unit);
    const int64_t element_bytes = DTypeBytes(plan_.units(unit).reduce_dtype());
    const int64_t bytes = layout.padded_numel() * element_bytes;
    const int replicas = layout_.replica_count();
    if (bytes == 0) return;
    if (layout_.shard_count() > 1) {
      traffic_.shard_ring_bytes[layout_.shard_count()] +=
          times * (bytes - layout.shard_numel() * element_bytes);
      Note(unit, bytes, times);
    }
    if (replicas > 1) {
      traffic_.replica_ring_bytes +=
          times * 2 * (replicas - 1) * CeilDivide(layout.shard_numel(), replicas) * element_bytes;
      Note(unit, layout.shard_numel() * element_bytes, times);
    }
  }

  StepTraffic Take() { return std::move(traffic_); }

 private:
  void Note(int unit, int64_t bytes, int64_t times) {
    traffic_.collectives += times;
    if (bytes <= traffic_.largest_message_bytes) return;
    traffic_.largest_message_bytes = bytes;
    traffic_.largest_message_unit = unit;
  }

  const v1::Plan& plan_;
  const v1::Layout& layout_;
  StepTraffic traffic_;
};

}  // namespace

int64_t StepTraffic::TotalBytes() const {
  int64_t bytes = replica_ring_bytes;
  for (const auto& [ranks, sent] : shard_ring_bytes) bytes += sent;
  return bytes;
}

StepTraffic TrafficOf(const v1::Plan& plan, const v1::Layout& layout, int64_t micro_batches,
                      int64_t reductions) {
  Counter counter(plan, layout);
  for (int i = 0; i < plan.units_size(); ++i) {
    // FSDP's no_sync lets go of parameters after the backward but with shard_grad_op.
    const bool stays_for_step =
        KeepsUnitsWhole(StrategyOfUnit(layout, i)) && reductions < micro_batches;
    counter.Gather(i, layout.shard_count(), stays_for_step ? 1 : micro_batches);
    if (!IsRootUnit(plan.units(i)) || layout.reshard_root()) {
      counter.Gather(i, ReshardGroupOfUnit(layout, i), micro_batches);
    }
    if (IsTrained(plan.units(i))) counter.Reduce(i, reductions);
  }
  return counter.Take();
}

RankTraffic TrafficOfRank(const StepTraffic& traffic, const v1::Layout& layout, int rank) {
  const Mesh mesh = MeshOf(layout);
  RankTraffic sent;
  const auto send = [&](int peer, int64_t bytes) {
    (mesh.HostOf(peer) == mesh.HostOf(rank) ? sent.intra_host_bytes : sent.inter_host_bytes) +=
        bytes;
  };
  for (const auto& [ranks, bytes] : traffic.shard_ring_bytes) {
    const int first = rank / ranks * ranks;
    send(first + (rank - first + 1) % ranks, bytes);
  }
  send((rank + mesh.shard_count) % mesh.world_size, traffic.replica_ring_bytes);
  return sent;
}

}  // namespace tessera
