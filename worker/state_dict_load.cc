// State dicts: taking them.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/session_impl.h"
#include "worker/shard_slices.h"
#include "worker/state_dict.h"

namespace tessera {
namespace {

template <typename T>
absl::string_view Bytes(const T& said) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&said), sizeof(said)};
}

// All ranks say the same, or the error names one that does not.
absl::Status MeetAlike(SessionImpl& impl, const std::string& what, absl::string_view said) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all, impl.Meet(what, said));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == said) continue;
    return impl.Keep(absl::InvalidArgumentError(
        absl::StrCat(what, " is given other values on rank ", i, " than on rank ",
                     impl.parts().assignment.rank(), "; give the same on every rank")));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::Unit& unit, const v1::UnitParameter& parameter, DType dtype,
                        const std::vector<int64_t>& shape) {
  const std::vector<int64_t> planned(parameter.shape().begin(), parameter.shape().end());
  if (dtype == unit.original_dtype() && shape == planned) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the state of parameter \"", parameter.fqn(), "\" is ", DTypeName(dtype), " [",
                   absl::StrJoin(shape, ", "), "] and the plan has ",
                   DTypeName(unit.original_dtype()), " [", absl::StrJoin(planned, ", "), "]"));
}

absl::Status WrongArrays(const v1::UnitParameter& parameter, const std::vector<std::string>& names,
                         DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("the state of parameter \"", parameter.fqn(), "\" needs the optimizer's arrays ",
                   absl::StrJoin(names, ", "), ", in ", DTypeName(dtype),
                   " and as long as it; give StateOptions optimizer false to load none"));
}

// One parameter's elements from `begin` on, by array: the values first, then the optimizer's.
struct Run {
  int64_t begin = 0;
  int64_t numel = 0;
  std::vector<absl::string_view> arrays;
};

// Where a rank's shards take them.
class Shards {
 public:
  Shards(SessionImpl& impl, const StateOptions& options)
      : impl_(impl),
        names_(options.optimizer ? OptimizerArrayNames(impl.parts().spec.optimizer())
                                 : std::vector<std::string>()) {}

  const std::vector<std::string>& names() const { return names_; }

  // The run of a shard that somebody gives. INVALID_ARGUMENT: it is not as the plan has it.
  absl::StatusOr<Run> RunOf(int index, const v1::UnitParameter& parameter,
                            const ParameterShard& given) const {
    const v1::Unit& unit = impl_.plan().units(index);
    TESSERA_RETURN_IF_ERROR(CheckShape(unit, parameter, given.dtype, given.shape));
    Run run = {given.begin, given.numel, {given.bytes}};
    const auto bytes = static_cast<size_t>(given.numel * DTypeBytes(given.dtype));
    if (given.begin < 0 || given.numel < 0 || given.begin + given.numel > parameter.numel() ||
        given.bytes.size() != bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the state of parameter \"", parameter.fqn(), "\" has elements ", given.begin, " to ",
          given.begin + given.numel, " in ", given.bytes.size(), " bytes; the parameter has ",
          parameter.numel(), " elements of ", DTypeBytes(given.dtype), " bytes"));
    }
    for (size_t i = 0; i < names_.size() && parameter.requires_grad(); ++i) {
      const DType dtype = impl_.parts().store->State(index, static_cast<int>(i)).dtype;
      if (i >= given.optimizer.size() || given.optimizer[i].name != names_[i] ||
          given.optimizer[i].dtype != dtype ||
          static_cast<int64_t>(given.optimizer[i].bytes.size()) != given.numel * DTypeBytes(dtype))
        return WrongArrays(parameter, names_, dtype);
      run.arrays.push_back(given.optimizer[i].bytes);
    }
    return run;
  }

  std::vector<ShardSlice> SlicesOfUnit(int unit) const {
    const SessionParts& parts = impl_.parts();
    return SlicesOf(impl_.plan().units(unit), parts.planned.layouts[unit],
                    parts.assignment.shard_index());
  }

  // Copies what the slice and the run have in common.
  void Copy(int unit, const ShardSlice& slice, const Run& run) const {
    const int64_t begin = std::max(slice.begin, run.begin);
    const int64_t end = std::min(slice.begin + slice.numel, run.begin + run.numel);
    for (size_t i = 0; i < run.arrays.size() && begin < end; ++i) {
      const ShardStore& store = *impl_.parts().store;
      const ShardSpan to =
          i == 0 ? store.Parameters(unit) : store.State(unit, static_cast<int>(i) - 1);
      const int64_t element = DTypeBytes(to.dtype);
      std::memcpy(to.data + (slice.offset + begin - slice.begin) * element,
                  run.arrays[i].data() + (begin - run.begin) * element, (end - begin) * element);
    }
  }

 private:
  SessionImpl& impl_;
  const std::vector<std::string> names_;
};

// A whole parameter as the one shard that it is.
ParameterShard AsShard(const ParameterState& state, int64_t numel) {
  ParameterShard shard;
  shard.dtype = state.value.dtype;
  shard.shape = state.value.shape;
  shard.numel = numel;
  shard.bytes = {state.value.bytes.data(), state.value.bytes.size()};
  for (const StateArray& array : state.optimizer) {
    shard.optimizer.push_back({array.name, array.dtype, {array.bytes.data(), array.bytes.size()}});
  }
  return shard;
}

using Finder = absl::FunctionRef<absl::StatusOr<ParameterState>(const std::string& fqn)>;

absl::StatusOr<ParameterState> Find(const v1::UnitParameter& parameter, Finder find) {
  absl::StatusOr<ParameterState> found = find(parameter.fqn());
  for (int i = 0; absl::IsNotFound(found.status()) && i < parameter.tied_fqns_size(); ++i) {
    absl::StatusOr<ParameterState> tied = find(parameter.tied_fqns(i));
    if (!absl::IsNotFound(tied.status())) return tied;
  }
  return found;
}

absl::Status LoadUnit(SessionImpl& impl, const Shards& shards, int index, Finder find) {
  const v1::Unit& unit = impl.plan().units(index);
  std::vector<ParameterState> states;
  std::vector<Run> runs;
  uint64_t hash = 0;
  for (const v1::UnitParameter& parameter : unit.parameters()) {
    TESSERA_ASSIGN_OR_RETURN(ParameterState state, Find(parameter, find));
    states.push_back(std::move(state));
    TESSERA_ASSIGN_OR_RETURN(
        Run run, shards.RunOf(index, parameter, AsShard(states.back(), parameter.numel())));
    for (const absl::string_view bytes : run.arrays) hash = HashBytes(bytes, hash);
    runs.push_back(std::move(run));
  }
  TESSERA_RETURN_IF_ERROR(MeetAlike(
      impl, absl::StrCat("LoadFullState of unit ", unit.fqn().empty() ? "(root)" : unit.fqn()),
      Bytes(hash)));
  for (const ShardSlice& slice : shards.SlicesOfUnit(index))
    shards.Copy(index, slice, runs[slice.parameter]);
  impl.EndWriting(index);
  return absl::OkStatus();
}

absl::Status BeginLoad(SessionImpl& impl, const std::string& what, const StateOptions& options,
                       const StateCounters& counters) {
  TESSERA_RETURN_IF_ERROR(impl.CheckIdle(what));
  if (counters.step < 0 || counters.updates < 0 || counters.updates > counters.step) {
    return impl.Keep(absl::InvalidArgumentError(
        absl::StrCat(what, " at step ", counters.step, " after ", counters.updates,
                     " updates; give a step of 0 or more and no more updates than steps")));
  }
  for (int unit = 0; unit < impl.plan().units_size(); ++unit)
    TESSERA_RETURN_IF_ERROR(impl.BeginWriting(unit));
  struct {
    int64_t step, updates, optimizer, loss_scale_age;
    double loss_scale;
  } said = {counters.step, counters.updates, options.optimizer ? 1 : 0, counters.loss_scale_age,
            counters.loss_scale};
  return MeetAlike(impl, what, Bytes(said));
}

// By unit and parameter: what is given of it.
using GivenRuns = std::map<std::pair<int, int>, std::vector<Run>>;

absl::StatusOr<GivenRuns> FindRuns(const SessionImpl& impl, const Shards& shards,
                                   absl::Span<const ParameterShard> given) {
  GivenRuns runs;
  for (const ParameterShard& shard : given) {
    TESSERA_ASSIGN_OR_RETURN(const auto place, impl.PlaceOf(shard.fqn));
    const v1::Unit& unit = impl.plan().units(place.first);
    TESSERA_ASSIGN_OR_RETURN(Run run,
                             shards.RunOf(place.first, unit.parameters(place.second), shard));
    runs[place].push_back(std::move(run));
  }
  for (auto& [place, list] : runs) {
    std::sort(list.begin(), list.end(),
              [](const Run& a, const Run& b) { return a.begin < b.begin; });
  }
  return runs;
}

// Every element of this rank's shards is in some run.
absl::Status CheckCovered(const SessionImpl& impl, const Shards& shards, GivenRuns& runs) {
  for (int unit = 0; unit < impl.plan().units_size(); ++unit) {
    for (const ShardSlice& slice : shards.SlicesOfUnit(unit)) {
      int64_t covered = slice.begin;
      for (const Run& run : runs[{unit, slice.parameter}]) {
        if (run.begin > covered) break;
        covered = std::max(covered, run.begin + run.numel);
      }
      if (covered >= slice.begin + slice.numel) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("no shard has element ", covered, " of parameter \"",
                       impl.plan().units(unit).parameters(slice.parameter).fqn(), "\", which rank ",
                       impl.parts().assignment.rank(), " needs; it needs elements ", slice.begin,
                       " to ", slice.begin + slice.numel - 1));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadFullState(Session& session, const StateOptions& options,
                           const StateCounters& counters, Finder find) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(BeginLoad(impl, "LoadFullState", options, counters));
  const Shards shards(impl, options);
  for (int unit = 0; unit < impl.plan().units_size(); ++unit)
    TESSERA_RETURN_IF_ERROR(impl.Keep(LoadUnit(impl, shards, unit, find)));
  impl.ResumeAt(counters.step, counters.updates, counters.loss_scale, counters.loss_scale_age);
  return absl::OkStatus();
}

absl::Status LoadShardedState(Session& session, const StateOptions& options,
                              const StateCounters& counters,
                              absl::Span<const ParameterShard> given) {
  SessionImpl& impl = SessionAccess::Of(session);
  TESSERA_RETURN_IF_ERROR(BeginLoad(impl, "LoadShardedState", options, counters));
  const Shards shards(impl, options);
  absl::StatusOr<GivenRuns> runs = FindRuns(impl, shards, given);
  const absl::Status can = runs.ok() ? CheckCovered(impl, shards, *runs) : runs.status();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           impl.Meet("the end of LoadShardedState's checks", can.ok() ? "1" : "0"));
  TESSERA_RETURN_IF_ERROR(impl.Keep(can));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == "1") continue;
    return impl.Keep(absl::InvalidArgumentError(
        absl::StrCat("rank ", i, " cannot load the shards that it was given; its error says why")));
  }
  for (int unit = 0; unit < impl.plan().units_size(); ++unit) {
    for (const ShardSlice& slice : shards.SlicesOfUnit(unit)) {
      for (const Run& run : (*runs)[{unit, slice.parameter}]) shards.Copy(unit, slice, run);
    }
    impl.EndWriting(unit);
  }
  impl.ResumeAt(counters.step, counters.updates, counters.loss_scale, counters.loss_scale_age);
  return absl::OkStatus();
}

}  // namespace tessera
