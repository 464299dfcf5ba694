// State dicts: giving them.
#include "worker/state_dict.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint_index.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"
#include "worker/session_impl.h"
#include "worker/shard_slices.h"

namespace tessera {
namespace {

// Which of the optimizer's arrays a dict of `unit` has.
std::vector<std::string> ArraysOf(const SessionImpl& impl, const StateOptions& options) {
  if (!options.optimizer) return {};
  return OptimizerArrayNames(impl.parts().spec.optimizer());
}

// Adds array `array` of every parameter of the unit that has it.
absl::Status GatherArray(SessionImpl& impl, int unit, int array, const std::string& name, bool keep,
                         std::vector<ParameterState>& states) {
  const v1::UnitLayout& layout = impl.parts().planned.layouts[unit];
  const DType dtype = impl.parts().store->State(unit, array).dtype;
  const int64_t element = DTypeBytes(dtype);
  std::vector<char> whole(keep ? layout.padded_numel() * element : 0);
  TESSERA_RETURN_IF_ERROR(
      impl.Keep(impl.executor().GatherState(unit, array, keep ? whole.data() : nullptr)));
  for (size_t p = 0; p < states.size(); ++p) {
    const v1::UnitParameter& parameter = impl.plan().units(unit).parameters(static_cast<int>(p));
    if (!parameter.requires_grad()) continue;
    const char* begin = whole.data() + layout.parameters(static_cast<int>(p)).offset() * element;
    StateArray& to = states[p].optimizer.emplace_back();
    to.name = name;
    to.dtype = dtype;
    to.bytes.assign(begin, begin + parameter.numel() * element);
  }
  return absl::OkStatus();
}

}  // namespace

StateCounters CountersOf(Session& session) {
  const SessionImpl& impl = SessionAccess::Of(session);
  return {.step = impl.step(),
          .updates = impl.updates(),
          .loss_scale = impl.loss_scale().factor(),
          .loss_scale_age = impl.loss_scale().age()};
}

std::vector<std::string> OptimizerArrayNames(const v1::OptimizerSpec& optimizer) {
  return OptimizerArrayNames(optimizer.name(), OptimizerStateArrays(optimizer));
}

absl::Status VisitFullState(
    Session& session, const StateOptions& options,
    absl::FunctionRef<absl::Status(absl::Span<const ParameterState> unit)> visit) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckIdle("VisitFullState"));
  const std::vector<std::string> arrays = ArraysOf(impl, options);
  if (!arrays.empty() && impl.parts().layout.device() == v1::CUDA) {
    return impl.Keep(absl::UnimplementedError(
        "the optimizer's state cannot be gathered on GPUs yet; give StateOptions optimizer false"));
  }
  TESSERA_RETURN_IF_ERROR(impl.Meet("VisitFullState", arrays.empty() ? "0" : "1").status());
  const bool keep = !options.rank0_only || session.rank() == 0;
  for (int unit = 0; unit < impl.plan().units_size(); ++unit) {
    TESSERA_ASSIGN_OR_RETURN(std::vector<SummonedParameter> values, impl.SummonUnit(unit, keep));
    std::vector<ParameterState> states(values.size());
    for (size_t p = 0; p < states.size(); ++p) {
      const auto& tied = impl.plan().units(unit).parameters(static_cast<int>(p)).tied_fqns();
      states[p].value = std::move(values[p]);
      states[p].tied_fqns = {tied.begin(), tied.end()};
    }
    for (size_t array = 0; array < arrays.size(); ++array) {
      TESSERA_RETURN_IF_ERROR(
          GatherArray(impl, unit, static_cast<int>(array), arrays[array], keep, states));
    }
    if (keep) TESSERA_RETURN_IF_ERROR(impl.Keep(visit(states)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ParameterShard>> ShardedState(Session& session,
                                                         const StateOptions& options) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(impl.CheckIdle("ShardedState"));
  const std::vector<std::string> arrays = ArraysOf(impl, options);
  const SessionParts& parts = impl.parts();
  if (parts.layout.device() == v1::CUDA)
    return absl::UnimplementedError("a GPU's shards cannot be read yet; call VisitFullState");
  std::vector<ParameterShard> shards;
  for (int u = 0; u < impl.plan().units_size(); ++u) {
    const v1::Unit& unit = impl.plan().units(u);
    const ShardSpan values = parts.store->Parameters(u);
    const int64_t element = DTypeBytes(values.dtype);
    for (const ShardSlice& slice :
         SlicesOf(unit, parts.planned.layouts[u], parts.assignment.shard_index())) {
      const v1::UnitParameter& parameter = unit.parameters(slice.parameter);
      ParameterShard& shard = shards.emplace_back();
      shard.fqn = parameter.fqn();
      shard.tied_fqns = {parameter.tied_fqns().begin(), parameter.tied_fqns().end()};
      shard.dtype = values.dtype;
      shard.shape = {parameter.shape().begin(), parameter.shape().end()};
      shard.begin = slice.begin;
      shard.numel = slice.numel;
      shard.bytes = {values.data + slice.offset * element,
                     static_cast<size_t>(slice.numel * element)};
      for (size_t i = 0; i < arrays.size() && parameter.requires_grad(); ++i) {
        const ShardSpan state = parts.store->State(u, static_cast<int>(i));
        const int64_t bytes = DTypeBytes(state.dtype);
        shard.optimizer.push_back(
            {arrays[i], state.dtype,
             absl::string_view(state.data + slice.offset * bytes, slice.numel * bytes)});
      }
    }
  }
  return shards;
}

}  // namespace tessera
