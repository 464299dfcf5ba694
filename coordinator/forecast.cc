#include "coordinator/forecast.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/control_file.h"
#include "common/device_arena.h"
#include "common/dtype.h"
#include "common/model_spec.h"
#include "common/optimizer_state.h"
#include "coordinator/layout.h"
#include "coordinator/layout_slots.h"
#include "coordinator/mesh.h"
#include "coordinator/timeline.h"
#include "coordinator/wire.h"

namespace tessera {
namespace {

int64_t SumOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  int64_t sum = 0;
  for (const v1::Slot& slot : slots) sum += slot.bytes();
  return sum;
}

int64_t GradientSlotBytes(const v1::Layout& layout) {
  return SumOf(layout.gradient_slots()) + SumOf(layout.accumulation_slots());
}

v1::GpuForecast ForecastGpu(const v1::Layout& layout) {
  v1::GpuForecast gpu;
  gpu.set_unsharded_bytes(SumOf(layout.unsharded_slots()));
  gpu.set_unsharded_gradient_bytes(GradientSlotBytes(layout));
  gpu.set_resharded_bytes(SumOf(layout.reshard_slots()));
  gpu.set_staging_bytes(layout.staging_bytes());
  gpu.set_total_bytes(gpu.unsharded_bytes() + gpu.unsharded_gradient_bytes() +
                      gpu.resharded_bytes() + gpu.staging_bytes());
  gpu.set_allocated_bytes(DeviceArenaOf(layout).bytes);
  return gpu;
}

// No more than a model may have, whatever the shape says.
int64_t NumelOf(const v1::UnitBuffer& buffer) {
  __int128 numel = 1;
  for (const int64_t extent : buffer.shape()) {
    numel = std::min<__int128>(numel * std::max<int64_t>(extent, 0), kMaxModelNumel);
  }
  return static_cast<int64_t>(numel);
}

int64_t BufferBytes(const v1::Plan& plan) {
  int64_t bytes = 0;
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::UnitBuffer& buffer : unit.buffers())
      bytes += NumelOf(buffer) * DTypeBytes(buffer.buffer_dtype());
  }
  return bytes;
}

// Every rank has shards of the same length.
v1::RankForecast ForecastRank(const v1::Plan& plan, const v1::Layout& layout,
                              const UnmanagedBytes& unmanaged) {
  v1::RankForecast rank;
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t state = 0;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    const int64_t numel = layout.units(i).shard_numel();
    if (!MasterIsResident(unit, layout)) parameters += numel * DTypeBytes(unit.original_dtype());
    gradients += numel * DTypeBytes(GradientDType(unit));
    state += numel * DTypeBytes(OptimizerStateDType(unit.original_dtype()));
  }
  rank.set_parameter_bytes(parameters);
  rank.set_gradient_bytes(gradients);
  rank.set_optimizer_bytes(state * layout.rank_file().optimizer_arrays());
  rank.set_undo_bytes(layout.rank_file().undo_bytes());
  rank.set_record_bytes(layout.rank_file().record_bytes());
  rank.set_private_total_bytes(layout.rank_file().total_bytes());
  rank.set_padding_bytes(rank.private_total_bytes() - rank.parameter_bytes() -
                         rank.gradient_bytes() - rank.optimizer_bytes() - rank.undo_bytes() -
                         rank.record_bytes());
  rank.set_mapped_bytes(RoundUp(rank.private_total_bytes(), kPageBytes));
  if (layout.device() == v1::CUDA) *rank.mutable_gpu() = ForecastGpu(layout);
  rank.set_buffer_bytes(BufferBytes(plan));
  rank.set_unmanaged_bytes(unmanaged.parameters);
  rank.set_unmanaged_gradient_bytes(unmanaged.gradients);
  return rank;
}

class HostForecaster {
 public:
  explicit HostForecaster(const v1::Layout& layout)
      : layout_(layout),
        mesh_(MeshOf(layout)),
        shared_(layout.device() != v1::CUDA),
        unsharded_(shared_ ? SumOf(layout.unsharded_slots()) : 0),
        unsharded_file_(shared_ ? RoundUp(UnshardedEnd(layout), kPageBytes) : 0),
        gradients_(shared_ ? GradientSlotBytes(layout) : 0),
        staging_(shared_ ? layout.staging_bytes() : 0),
        resharded_(shared_ ? SumOf(layout.reshard_slots()) : 0) {}

  v1::HostForecast Make(int index) const {
    const int ranks = mesh_.RanksOf(index);
    const int groups = mesh_.ShardGroupsOf(index);
    v1::HostForecast host;
    host.set_host(index);
    host.set_ranks(ranks);
    host.set_shard_groups(groups);
    host.set_unsharded_bytes(groups * unsharded_);
    host.set_unsharded_gradient_bytes(ranks * gradients_);
    host.set_staging_bytes(ranks * staging_);
    host.set_resharded_bytes(ranks * resharded_);
    host.set_control_bytes(
        ControlFileBytes(ranks, layout_.unsharded_slots_size(), layout_.gradient_slots_size()));
    host.set_shared_total_bytes(host.unsharded_bytes() + host.unsharded_gradient_bytes() +
                                host.resharded_bytes() + host.staging_bytes() +
                                host.control_bytes());
    host.set_unsharded_file_bytes(groups * unsharded_file_);
    host.set_gradient_file_bytes(RoundUp(ranks * layout_.gradient_stride_bytes(), kPageBytes));
    host.set_control_file_bytes(RoundUp(host.control_bytes(), kPageBytes));
    host.set_mapped_bytes(host.unsharded_file_bytes() + host.gradient_file_bytes() +
                          host.control_file_bytes());
    return host;
  }

  // The first of those with the most shard groups; only the last host may have fewer ranks than
  // another.
  v1::HostForecast Busiest() const {
    int busiest = 0;
    for (int host = 1; host < mesh_.world_size / mesh_.local_world_size; ++host) {
      if (mesh_.ShardGroupsOf(host) > mesh_.ShardGroupsOf(busiest)) busiest = host;
    }
    return Make(busiest);
  }

 private:
  const v1::Layout& layout_;
  const Mesh mesh_;
  const bool shared_;
  // Of a shard group, of a rank.
  const int64_t unsharded_, unsharded_file_;
  const int64_t gradients_, staging_, resharded_;
};

// What a rank has beside Tessera's memory.
int64_t ProgramBytes(const v1::RankForecast& rank) {
  return rank.buffer_bytes() + rank.unmanaged_bytes() + rank.unmanaged_gradient_bytes();
}

int64_t LiveBytes(const StepPoint& point) {
  return point.unsharded_bytes + point.gradient_bytes + point.resharded_bytes +
         point.staging_bytes + point.activation_bytes;
}

// The busiest point of each phase that there is, then the busiest of all as PEAK.
std::vector<StepPoint> BusiestPoints(const std::vector<StepPoint>& timeline) {
  std::vector<StepPoint> busiest;
  for (const StepPoint& point : timeline) {
    const auto same = std::find_if(busiest.begin(), busiest.end(), [&](const StepPoint& other) {
      return other.phase == point.phase;
    });
    if (same == busiest.end()) {
      busiest.push_back(point);
    } else if (LiveBytes(*same) < LiveBytes(point)) {
      *same = point;
    }
  }
  const auto less = [](const StepPoint& a, const StepPoint& b) {
    return LiveBytes(a) < LiveBytes(b);
  };
  StepPoint peak = *std::max_element(busiest.begin(), busiest.end(), less);
  peak.phase = v1::PhaseForecast::PEAK;
  busiest.push_back(peak);
  return busiest;
}

void AddPhases(const v1::Plan& plan, const v1::Layout& layout, const Activations& activations,
               const v1::RankForecast& rank, const v1::HostForecast& host, v1::Forecast* forecast) {
  const int64_t lasting = rank.private_total_bytes() + ProgramBytes(rank);
  // On CPUs the ranks of a shard group have whole units in common.
  const int64_t copies = layout.device() == v1::CUDA ? host.ranks() : host.shard_groups();
  for (const StepPoint& point : BusiestPoints(StepTimeline(plan, layout, activations))) {
    v1::PhaseForecast* phase = forecast->add_phases();
    phase->set_phase(point.phase);
    if (point.unit >= 0) phase->set_unit_fqn(plan.units(point.unit).fqn());
    phase->set_unsharded_bytes(point.unsharded_bytes);
    phase->set_unsharded_gradient_bytes(point.gradient_bytes);
    phase->set_resharded_bytes(point.resharded_bytes);
    phase->set_staging_bytes(point.staging_bytes);
    phase->set_activation_bytes(point.activation_bytes);
    phase->set_rank_bytes(lasting + LiveBytes(point));
    phase->set_host_bytes(host.ranks() * (phase->rank_bytes() - point.unsharded_bytes) +
                          copies * point.unsharded_bytes);
  }
}

void AddTraffic(const v1::Plan& plan, const v1::Layout& layout, const ForecastOptions& options,
                v1::Forecast* forecast) {
  const StepTraffic traffic = TrafficOf(plan, layout, options.micro_batches, options.reductions);
  forecast->set_wire_bytes_per_step(traffic.TotalBytes());
  forecast->set_collectives_per_step(traffic.collectives);
  forecast->set_largest_message_bytes(traffic.largest_message_bytes);
  if (traffic.largest_message_unit >= 0) {
    forecast->set_largest_message_unit(plan.units(traffic.largest_message_unit).fqn());
  }
  int64_t intra = 0, inter = 0;
  for (v1::RankForecast& rank : *forecast->mutable_ranks()) {
    const RankTraffic sent = TrafficOfRank(traffic, layout, rank.rank());
    rank.set_intra_host_wire_bytes_per_step(sent.intra_host_bytes);
    rank.set_inter_host_wire_bytes_per_step(sent.inter_host_bytes);
    intra += sent.intra_host_bytes;
    inter += sent.inter_host_bytes;
  }
  forecast->set_intra_host_wire_bytes_per_step(intra);
  forecast->set_inter_host_wire_bytes_per_step(inter);
}

void AddCheckpoint(const v1::Plan& plan, const v1::Layout& layout, const UnmanagedBytes& unmanaged,
                   v1::Forecast* forecast) {
  int64_t parameters = unmanaged.parameters;
  int64_t state = 0;
  for (const v1::Unit& unit : plan.units()) {
    parameters += unit.numel() * DTypeBytes(unit.original_dtype());
    state += unit.numel() * DTypeBytes(OptimizerStateDType(unit.original_dtype()));
    for (const v1::UnitBuffer& buffer : unit.buffers())
      parameters += NumelOf(buffer) * DTypeBytes(buffer.original_dtype());
  }
  forecast->set_export_bytes(parameters);
  forecast->set_checkpoint_bytes(parameters + state * layout.rank_file().optimizer_arrays());
}

}  // namespace

UnmanagedBytes UnmanagedOf(const v1::Plan& plan, const v1::ModelSpec& model) {
  UnmanagedBytes bytes;
  std::set<std::string> names(plan.orphans().begin(), plan.orphans().end());
  names.insert(plan.ignored().begin(), plan.ignored().end());
  if (names.empty()) return bytes;
  const absl::StatusOr<ModelIndex> index = ModelIndex::Create(model);
  if (!index.ok()) return bytes;  // no plan is of a model that is not valid
  // The parameter itself, or a module around it.
  const auto named = [&](const std::string& fqn) {
    if (names.count("") > 0 || names.count(fqn) > 0) return true;
    for (size_t dot = fqn.find('.'); dot != std::string::npos; dot = fqn.find('.', dot + 1)) {
      if (names.count(fqn.substr(0, dot)) > 0) return true;
    }
    return false;
  };
  for (const ModelIndex::Parameter& parameter : index->parameters()) {
    if (!named(parameter.fqn)) continue;
    const int64_t own = parameter.numel * DTypeBytes(parameter.dtype);
    bytes.parameters += own;
    if (parameter.requires_grad) bytes.gradients += own;
  }
  return bytes;
}

ForecastOptions ForecastOptionsOf(const v1::ModelSpec& model, const v1::Plan& plan,
                                  const v1::JobSpec& resolved, int world_size) {
  ForecastOptions options;
  options.micro_batches = resolved.micro_batches();
  options.reductions = resolved.memory().accumulate_unsynchronized() ? 1 : resolved.micro_batches();
  options.activations = ForecastActivations(model, plan, resolved, world_size);
  options.unmanaged = UnmanagedOf(plan, model);
  return options;
}

v1::Forecast MakeForecast(const v1::Plan& plan, const v1::Layout& layout,
                          const ForecastOptions& options) {
  v1::Forecast forecast;
  v1::RankForecast rank = ForecastRank(plan, layout, options.unmanaged);
  for (int i = 0; i < layout.world_size(); ++i) {
    rank.set_rank(i);
    *forecast.add_ranks() = rank;
  }
  const HostForecaster hosts(layout);
  for (int host = 0; host < MeshOf(layout).Hosts(); ++host)
    *forecast.add_hosts() = hosts.Make(host);
  forecast.set_activation_bytes(options.activations.total);
  forecast.set_activation_certainty(options.activations.certainty);
  for (const v1::ActivationForecast& part : options.activations.classes) {
    *forecast.add_activations() = part;
  }
  AddPhases(plan, layout, options.activations, rank, hosts.Busiest(), &forecast);
  AddTraffic(plan, layout, options, &forecast);
  AddCheckpoint(plan, layout, options.unmanaged, &forecast);
  return forecast;
}

int64_t NeededBytes(const v1::Plan& plan, const v1::Layout& layout,
                    const ForecastOptions& options) {
  const v1::RankForecast rank = ForecastRank(plan, layout, options.unmanaged);
  const int64_t program = ProgramBytes(rank) + options.activations.total;
  if (layout.device() == v1::CUDA) return rank.gpu().allocated_bytes() + program;
  const v1::HostForecast host = HostForecaster(layout).Busiest();
  return host.mapped_bytes() + host.ranks() * (rank.mapped_bytes() + program);
}

}  // namespace tessera
