#include "common/checkpoint_index.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/json_message.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr int64_t kMaxShards = 1'000'000;

bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == absl::string_view::npos &&
         std::none_of(name.begin(), name.end(), absl::ascii_iscntrl);
}

// Elements of the shape, which is that of a parameter; nothing if there are none or too many.
std::optional<int64_t> CheckedNumel(const v1::CheckpointParameter& parameter) {
  int64_t numel = 1;
  for (const int64_t extent : parameter.shape()) {
    if (extent < 1 || __builtin_mul_overflow(numel, extent, &numel)) return std::nullopt;
  }
  if (numel > std::numeric_limits<int64_t>::max() / 8) return std::nullopt;
  return numel;
}

absl::Status CheckUnit(const v1::CheckpointUnit& unit, int shard_count,
                       std::set<std::string>* names) {
  const auto fault = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit \"", unit.fqn(), "\" ", what, "; the index is damaged"));
  };
  if (!IsTrainable(unit.dtype()) || !IsTrainable(unit.optimizer_dtype()))
    return fault("has no dtype of a parameter");
  int64_t padded = 0;
  if (unit.shard_numel() < 0 || __builtin_mul_overflow(unit.shard_numel(), shard_count, &padded))
    return fault("has a shard_numel out of range");
  int64_t end = 0;
  for (const v1::CheckpointParameter& parameter : unit.parameters()) {
    const std::optional<int64_t> numel = CheckedNumel(parameter);
    if (!numel.has_value() || parameter.offset() < end || parameter.offset() > padded ||
        *numel > padded - parameter.offset()) {
      return fault(absl::StrCat("does not hold its parameter ", parameter.fqn()));
    }
    end = parameter.offset() + *numel;
    std::vector<std::string> all(parameter.tied_fqns().begin(), parameter.tied_fqns().end());
    all.push_back(parameter.fqn());
    for (const std::string& name : all) {
      if (!names->insert(name).second) return fault(absl::StrCat("has ", name, " a second time"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIndex(const v1::CheckpointIndex& index) {
  const auto fault = [](absl::string_view field, absl::string_view what) {
    return InvalidField(field, absl::StrCat(what, "; the index is damaged"));
  };
  if (index.version() != kCheckpointVersion) {
    return InvalidField(
        "version", absl::StrCat("is ", index.version(), "; this build reads ", kCheckpointVersion));
  }
  if (index.step() < 0 || index.optimizer_updates() < 0 || index.data_position() < 0)
    return fault("step", "or a count that goes with it is negative");
  if (index.shard_count() < 1 || index.shard_count() > kMaxShards)
    return fault("shard_count", absl::StrCat("is ", index.shard_count()));
  if (index.files_size() != index.shard_count()) {
    return fault("files",
                 absl::StrCat("are ", index.files_size(), " for ", index.shard_count(), " shards"));
  }
  for (const v1::CheckpointFile& file : index.files()) {
    if (!IsPlainName(file.name()) || file.bytes() < 0)
      return fault("files", "are not plain names with a length");
  }
  std::set<std::string> names;
  for (const v1::CheckpointUnit& unit : index.units())
    TESSERA_RETURN_IF_ERROR(CheckUnit(unit, index.shard_count(), &names));
  return absl::OkStatus();
}

}  // namespace

std::string CheckpointDirectory(int64_t step) { return absl::StrCat(kStepPrefix, step); }

std::optional<int64_t> CheckpointStep(absl::string_view directory) {
  int64_t step = 0;
  absl::string_view digits = directory;
  if (!absl::ConsumePrefix(&digits, kStepPrefix) || digits.empty() ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &step) || CheckpointDirectory(step) != directory) {
    return std::nullopt;
  }
  return step;
}

std::string CheckpointShardFile(int shard, int shard_count) {
  return absl::StrFormat("shard-%05d-of-%05d.safetensors", shard + 1, shard_count);
}

std::string CheckpointTensor(const v1::CheckpointIndex& index, int array, absl::string_view fqn) {
  return absl::StrCat(array == kParameterArray ? "param" : index.optimizer_arrays(array), ":", fqn);
}

std::vector<std::string> OptimizerArrayNames(absl::string_view optimizer, int arrays) {
  std::vector<std::string> names = optimizer == "sgd"
                                       ? std::vector<std::string>{"momentum_buffer"}
                                       : std::vector<std::string>{"exp_avg", "exp_avg_sq"};
  for (int i = static_cast<int>(names.size()); i < arrays; ++i)
    names.push_back(absl::StrCat("state_", i));
  names.resize(static_cast<size_t>(arrays));
  return names;
}

int64_t NumelOf(const v1::CheckpointParameter& parameter) {
  int64_t numel = 1;
  for (const int64_t extent : parameter.shape()) numel *= extent;
  return numel;
}

std::vector<ShardRecord> CheckpointSlices(const v1::CheckpointUnit& unit, int shard) {
  std::vector<int64_t> offsets, numels;
  for (const v1::CheckpointParameter& parameter : unit.parameters()) {
    offsets.push_back(parameter.offset());
    numels.push_back(NumelOf(parameter));
  }
  return ShardRecords(offsets, numels, shard * unit.shard_numel(),
                      (shard + 1) * unit.shard_numel());
}

void ForEachSlice(const v1::CheckpointIndex& index, int shard,
                  absl::FunctionRef<void(int unit, int array, const ShardRecord& record)> slice) {
  for (int unit = 0; unit < index.units_size(); ++unit) {
    const std::vector<ShardRecord> records = CheckpointSlices(index.units(unit), shard);
    for (int array = kParameterArray; array < index.optimizer_arrays_size(); ++array) {
      for (const ShardRecord& record : records) slice(unit, array, record);
    }
  }
}

std::string CheckpointShardStart(const v1::CheckpointIndex& index, int shard) {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata = {
      {"format", absl::StrCat("tessera.checkpoint.", kCheckpointVersion)},
      {"step", absl::StrCat(index.step())},
      {"shard", absl::StrCat(shard)},
      {"shard_count", absl::StrCat(index.shard_count())}};
  ForEachSlice(index, shard, [&](int unit, int array, const ShardRecord& record) {
    const v1::CheckpointUnit& of = index.units(unit);
    const v1::CheckpointParameter& parameter = of.parameters(record.parameter);
    SafetensorsTensor& tensor = tensors.emplace_back();
    tensor.name = CheckpointTensor(index, array, parameter.fqn());
    tensor.dtype = array == kParameterArray ? of.dtype() : of.optimizer_dtype();
    tensor.shape = {record.end - record.begin};
    metadata[tensor.name] = absl::StrCat(record.begin, ":", record.end, " of [",
                                         absl::StrJoin(parameter.shape(), ","), "]");
  });
  return SafetensorsStart(tensors, metadata);
}

std::string CheckpointIndexJson(const v1::CheckpointIndex& index) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Cannot fail: a message of ours has no Any.
  (void)google::protobuf::util::MessageToJsonString(index, &json, options);
  return json;
}

absl::StatusOr<v1::CheckpointIndex> ParseCheckpointIndex(absl::string_view json,
                                                         absl::string_view source_name) {
  v1::CheckpointIndex index;
  TESSERA_RETURN_IF_ERROR(ParseJson(json, source_name, "a checkpoint's index", &index));
  TESSERA_RETURN_IF_ERROR(Annotate(CheckIndex(index), source_name));
  return index;
}

}  // namespace tessera
