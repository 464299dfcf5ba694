#include "worker/checkpoint_loader.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint_index.h"
#include "common/checkpoint_reader.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/file_roots.h"
#include "common/flat_layout.h"
#include "common/logging.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"
#include "worker/shard_arrays.h"

namespace tessera {
namespace {

constexpr char kField[] = "checkpoint.resume";

std::string ShowShape(const google::protobuf::RepeatedField<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The checkpoint's parameter that is the model's, by any of its names. NOT_FOUND: there is none.
absl::StatusOr<CheckpointPlace> PlaceOf(const CheckpointReader& reader,
                                        const v1::UnitParameter& parameter) {
  const CheckpointPlace* place = reader.Find(parameter.fqn());
  for (const std::string& tied : parameter.tied_fqns()) {
    const CheckpointPlace* other = reader.Find(tied);
    if (place == nullptr) place = other;
    if (other == nullptr || (other->unit == place->unit && other->parameter == place->parameter)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("parameter ", parameter.fqn(), " and ", tied,
                                                   " are one (tied) in the model and two in ",
                                                   "the checkpoint"));
  }
  if (place == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("has no parameter ", parameter.fqn(), ", which the model has"));
  }
  return *place;
}

absl::Status CheckParameter(const CheckpointReader& reader, const CheckpointPlace& place,
                            const v1::UnitParameter& parameter, DType dtype) {
  const v1::CheckpointParameter& saved = reader.parameter(place);
  if (!std::equal(saved.shape().begin(), saved.shape().end(), parameter.shape().begin(),
                  parameter.shape().end())) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", parameter.fqn(), " has the shape ", ShowShape(saved.shape()),
                     " in the checkpoint and ", ShowShape(parameter.shape()), " in the model"));
  }
  if (reader.DTypeOf(place, kParameterArray) != dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", parameter.fqn(), " is ", DTypeName(reader.DTypeOf(place, kParameterArray)),
        " in the checkpoint and ", DTypeName(dtype), " in the model"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const v1::CheckpointIndex& index, const LoadTarget& target) {
  const std::string& name = target.job.optimizer().name();
  const int arrays = OptimizerStateArrays(target.job.optimizer());
  if (index.optimizer() == name && index.optimizer_arrays_size() == arrays) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "was saved with the optimizer ", index.optimizer(), " and ", index.optimizer_arrays_size(),
      " arrays of state, and the job's is ", name, " with ", arrays,
      "; give the job that optimizer, or import the values (an export) and start anew"));
}

// Everything fits, in the order of the plan.
absl::StatusOr<std::vector<std::vector<CheckpointPlace>>> CheckAll(const CheckpointReader& reader,
                                                                   const LoadTarget& target) {
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(reader.index(), target));
  std::vector<std::vector<CheckpointPlace>> places(target.units.size());
  std::set<std::pair<int, int>> used;
  for (size_t unit = 0; unit < target.units.size(); ++unit) {
    const int number = static_cast<int>(unit);
    for (const v1::UnitParameter& parameter : target.units[unit].parameters()) {
      TESSERA_ASSIGN_OR_RETURN(const CheckpointPlace place, PlaceOf(reader, parameter));
      TESSERA_RETURN_IF_ERROR(CheckParameter(
          reader, place, parameter, ShardArray(target.store, number, kParameterArray).dtype));
      for (int array = 0; array < reader.index().optimizer_arrays_size(); ++array) {
        const DType dtype = ShardArray(target.store, number, array).dtype;
        if (reader.DTypeOf(place, array) == dtype) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("the optimizer's state of ", parameter.fqn(), " is ",
                         DTypeName(reader.DTypeOf(place, array)), " in the checkpoint and ",
                         DTypeName(dtype), " in the job"));
      }
      used.emplace(place.unit, place.parameter);
      places[unit].push_back(place);
    }
  }
  for (int unit = 0; unit < reader.index().units_size(); ++unit) {
    for (int p = 0; p < reader.index().units(unit).parameters_size(); ++p) {
      if (used.count({unit, p}) > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("has the parameter ",
                                                     reader.index().units(unit).parameters(p).fqn(),
                                                     ", which the model has not"));
    }
  }
  return places;
}

absl::Status ReadUnit(CheckpointReader& reader, const std::vector<CheckpointPlace>& places,
                      int unit, const LoadTarget& target) {
  for (int array = kParameterArray; array < reader.index().optimizer_arrays_size(); ++array) {
    const ShardSpan shard = ShardArray(target.store, unit, array);
    const int64_t bytes = DTypeBytes(shard.dtype);
    std::memset(shard.data, 0, static_cast<size_t>(shard.bytes()));  // padding is zeros
    for (const ShardRecord& record :
         RecordsOfShard(target.units[unit], target.layouts[unit], target.shard_index)) {
      TESSERA_RETURN_IF_ERROR(reader.Read(places[record.parameter], array, record.begin, record.end,
                                          shard.data + record.offset_in_shard * bytes));
    }
  }
  return absl::OkStatus();
}

void LogDifferences(const CheckpointReader& reader, const LoadTarget& target) {
  const v1::CheckpointIndex& index = reader.index();
  LogInfo(absl::StrCat("goes on from ", reader.directory(), ", step ", index.step(), ", saved by ",
                       index.world_size(), " ranks"));
  if (index.seed() != target.job.seed()) {
    LogInfo(absl::StrCat("the checkpoint is of seed ", index.seed(), " and the job's seed is ",
                         target.job.seed(), ": what is drawn from now on is of the job's"));
  }
}

}  // namespace

absl::StatusOr<std::optional<std::string>> CheckpointToResume(const v1::CheckpointSpec& checkpoint,
                                                              bool log) {
  if (checkpoint.resume() == "none") return std::nullopt;
  if (checkpoint.resume() != "auto") return checkpoint.resume();
  if (checkpoint.dir().empty()) {
    return InvalidField(kField,
                        "is auto, and checkpoint.dir is \"\": nothing is there to be found; "
                        "give checkpoint.dir, or the path of a checkpoint");
  }
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoints found, FindCheckpoints(checkpoint.dir()));
  for (const std::string& torn : found.torn) {
    if (log) LogInfo(absl::StrCat("skipped: ", torn));
  }
  if (found.whole.empty()) return std::nullopt;
  return found.whole.front().path;
}

absl::StatusOr<std::optional<std::string>> NewestOfRun(const v1::CheckpointSpec& checkpoint,
                                                       const std::string& run) {
  if (checkpoint.dir().empty() || run.empty()) return std::nullopt;
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoints found, FindCheckpoints(checkpoint.dir()));
  for (const FoundCheckpoints::Whole& whole : found.whole) {
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(whole.path);
    if (reader.ok() && reader->index().run() == run) return whole.path;
  }
  return std::nullopt;
}

absl::StatusOr<TrainingState> LoadCheckpoint(const std::string& path, const LoadTarget& target) {
  TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().CheckCheckpoint(kField, path));
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  if (!reader.ok()) return Annotate(reader.status(), kField);
  const auto places = CheckAll(*reader, target);
  if (!places.ok()) {
    return InvalidField(kField, absl::StrCat(path, ": ", places.status().message()));
  }
  for (size_t unit = 0; unit < target.units.size(); ++unit) {
    TESSERA_RETURN_IF_ERROR(ReadUnit(*reader, (*places)[unit], static_cast<int>(unit), target));
  }
  if (target.log) LogDifferences(*reader, target);
  const v1::CheckpointIndex& index = reader->index();
  TrainingState state;
  state.step = index.step();
  state.updates = index.optimizer_updates();
  state.data_position = index.data_position();
  state.loss_scale = index.loss_scale();
  state.loss_scale_steps = index.loss_scale_steps();
  state.path = path;
  return state;
}

absl::StatusOr<TrainingState> LoadValues(const LoadTarget& target) {
  const v1::CheckpointSpec& checkpoint = target.job.checkpoint();
  std::optional<std::string> path;
  if (target.attempt > 1) {
    TESSERA_ASSIGN_OR_RETURN(path, NewestOfRun(checkpoint, target.run));
  }
  if (!path.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(path, CheckpointToResume(checkpoint, target.log));
  }
  if (path.has_value()) return LoadCheckpoint(*path, target);
  if (!checkpoint.import().empty()) TESSERA_RETURN_IF_ERROR(ImportValues(target));
  return TrainingState();
}

}  // namespace tessera
