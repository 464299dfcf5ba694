#include "coordinator/forecast.h"

#include <algorithm>

#include "common/control_file.h"
#include "common/device_arena.h"
#include "common/dtype.h"
#include "coordinator/layout.h"

namespace tessera {
namespace {

int64_t SumOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  int64_t sum = 0;
  for (const v1::Slot& slot : slots) sum += slot.bytes();
  return sum;
}

v1::GpuForecast ForecastGpu(const v1::Layout& layout) {
  v1::GpuForecast gpu;
  gpu.set_unsharded_bytes(SumOf(layout.unsharded_slots()));
  gpu.set_unsharded_gradient_bytes(SumOf(layout.gradient_slots()));
  gpu.set_staging_bytes(layout.staging_bytes());
  gpu.set_total_bytes(gpu.unsharded_bytes() + gpu.unsharded_gradient_bytes() + gpu.staging_bytes());
  gpu.set_allocated_bytes(DeviceArenaOf(layout).bytes);
  return gpu;
}

// Every rank has shards of the same length.
v1::RankForecast ForecastRank(const v1::Plan& plan, const v1::Layout& layout) {
  v1::RankForecast rank;
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t elements = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const int64_t bytes =
        layout.units(i).shard_numel() * DTypeBytes(plan.units(i).original_dtype());
    if (!MasterIsResident(plan.units(i), layout)) parameters += bytes;
    gradients += bytes;  // reduced gradients are kept in the original dtype
    elements += layout.units(i).shard_numel();
  }
  rank.set_parameter_bytes(parameters);
  rank.set_gradient_bytes(gradients);
  rank.set_optimizer_bytes(elements * layout.rank_file().optimizer_arrays() *
                           static_cast<int64_t>(sizeof(float)));
  rank.set_undo_bytes(layout.rank_file().undo_bytes());
  rank.set_record_bytes(layout.rank_file().record_bytes());
  rank.set_private_total_bytes(layout.rank_file().total_bytes());
  rank.set_padding_bytes(rank.private_total_bytes() - rank.parameter_bytes() -
                         rank.gradient_bytes() - rank.optimizer_bytes() - rank.undo_bytes() -
                         rank.record_bytes());
  rank.set_mapped_bytes(RoundUp(rank.private_total_bytes(), kPageBytes));
  if (layout.device() == v1::CUDA) *rank.mutable_gpu() = ForecastGpu(layout);
  return rank;
}

v1::HostForecast ForecastHost(const v1::Layout& layout, int local_ranks) {
  v1::HostForecast host;
  const bool shared = layout.device() != v1::CUDA;
  host.set_unsharded_bytes(shared ? SumOf(layout.unsharded_slots()) : 0);
  host.set_unsharded_gradient_bytes(shared ? local_ranks * SumOf(layout.gradient_slots()) : 0);
  host.set_control_bytes(
      ControlFileBytes(local_ranks, layout.unsharded_slots_size(), layout.gradient_slots_size()));
  host.set_shared_total_bytes(host.unsharded_bytes() + host.unsharded_gradient_bytes() +
                              host.staging_bytes() + host.control_bytes());
  int64_t unsharded_end = 0;
  for (const v1::Slot& slot : layout.unsharded_slots()) {
    if (shared) unsharded_end = std::max(unsharded_end, slot.offset_bytes() + slot.bytes());
  }
  host.set_unsharded_file_bytes(RoundUp(unsharded_end, kPageBytes));
  host.set_gradient_file_bytes(RoundUp(local_ranks * layout.gradient_stride_bytes(), kPageBytes));
  host.set_control_file_bytes(RoundUp(host.control_bytes(), kPageBytes));
  host.set_mapped_bytes(host.unsharded_file_bytes() + host.gradient_file_bytes() +
                        host.control_file_bytes());
  return host;
}

int64_t WireBytes(const v1::Plan& plan, const v1::Layout& layout, int64_t micro_batches,
                  int64_t reductions) {
  int64_t bytes = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    const int64_t gathers = unit.has_enclosing_unit() ? 2 : 1;
    bool trained = false;
    for (const v1::UnitParameter& parameter : unit.parameters())
      trained |= parameter.requires_grad();
    const int64_t per_element = micro_batches * gathers * DTypeBytes(unit.param_dtype()) +
                                (trained ? reductions * DTypeBytes(unit.reduce_dtype()) : 0);
    bytes += (layout.shard_count() - 1) * layout.units(i).shard_numel() * per_element;
  }
  return bytes;
}

}  // namespace

v1::Forecast MakeForecast(const v1::Plan& plan, const v1::Layout& layout, int local_world_size,
                          int64_t micro_batches, int64_t reductions) {
  v1::Forecast forecast;
  v1::RankForecast rank = ForecastRank(plan, layout);
  for (int i = 0; i < layout.world_size(); ++i) {
    rank.set_rank(i);
    *forecast.add_ranks() = rank;
  }
  for (int start = 0; start < layout.world_size(); start += local_world_size) {
    v1::HostForecast* host = forecast.add_hosts();
    *host = ForecastHost(layout, std::min(local_world_size, layout.world_size() - start));
    host->set_host(forecast.hosts_size() - 1);
  }
  // The workload's own; nothing here knows what it computes.
  forecast.set_activation_certainty(v1::Forecast::UNKNOWN);
  forecast.set_wire_bytes_per_step(WireBytes(plan, layout, micro_batches, reductions));
  return forecast;
}

}  // namespace tessera
