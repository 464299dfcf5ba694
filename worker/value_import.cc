// ImportValues of checkpoint_loader.h: a model in safetensors files as the values to start from.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/file_roots.h"
#include "common/float_bits.h"
#include "common/logging.h"
#include "common/name_rules.h"
#include "common/safetensors_files.h"
#include "common/status_macros.h"
#include "worker/checkpoint_loader.h"
#include "worker/shard_arrays.h"

namespace tessera {
namespace {

constexpr char kField[] = "checkpoint.import";
constexpr int64_t kRunNumel = 1 << 16;  // converted at once

// A tensor, and the file that has it.
struct Source {
  size_t file = 0;
  const SafetensorsTensor* tensor = nullptr;
};

// float32 that rounds to the same 16-bit value as `value`: where it is not exact its last bit is
// set (round to odd), so that rounding twice is rounding once.
float ToOdd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

double ValueAt(DType dtype, const char* data, int64_t index) {
  uint16_t half = 0;
  float single = 0;
  double value = 0;
  switch (dtype) {
    case v1::FLOAT64:
      std::memcpy(&value, data + index * 8, 8);
      return value;
    case v1::FLOAT32:
      std::memcpy(&single, data + index * 4, 4);
      return single;
    case v1::FLOAT16:
      std::memcpy(&half, data + index * 2, 2);
      return FloatFromFloat16(half);
    default:
      std::memcpy(&half, data + index * 2, 2);
      return FloatFromBFloat16(half);
  }
}

void SetValue(DType dtype, double value, char* out) {
  const auto single = static_cast<float>(value);
  uint16_t half = 0;
  switch (dtype) {
    case v1::FLOAT64:
      std::memcpy(out, &value, 8);
      return;
    case v1::FLOAT32:
      std::memcpy(out, &single, 4);
      return;
    case v1::FLOAT16:
      half = Float16FromFloat(ToOdd(value));
      break;
    default:
      half = BFloat16FromFloat(ToOdd(value));
  }
  std::memcpy(out, &half, 2);
}

class Importer {
 public:
  static absl::StatusOr<Importer> Open(const v1::CheckpointSpec& checkpoint) {
    Importer importer;
    importer.path_ = checkpoint.import();
    TESSERA_ASSIGN_OR_RETURN(
        importer.rules_, NameRules::Create("checkpoint.import_names", checkpoint.import_names()));
    TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().CheckImport(importer.path_));
    TESSERA_ASSIGN_OR_RETURN(const SafetensorsFolder folder, ReadSafetensorsFolder(importer.path_));
    for (size_t i = 0; i < folder.paths.size(); ++i) {
      // A folder in the root may have links that lead out.
      TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().CheckImport(folder.paths[i]));
      TESSERA_ASSIGN_OR_RETURN(SafetensorsReader reader,
                               SafetensorsReader::Open(folder.paths[i], folder.files[i].name));
      importer.readers_.push_back(std::move(reader));
    }
    if (folder.index.has_value()) {
      std::vector<std::vector<SafetensorsTensor>> tensors;
      for (const SafetensorsReader& reader : importer.readers_) tensors.push_back(reader.tensors());
      TESSERA_RETURN_IF_ERROR(CheckSafetensorsIndex(*folder.index, folder.files, tensors));
    }
    TESSERA_RETURN_IF_ERROR(importer.NameTensors());
    return importer;
  }

  // Finds the tensors of every parameter, the one to read first. Nothing is left over.
  absl::Status Match(const LoadTarget& target) {
    std::set<std::string> used;
    for (const v1::Unit& unit : target.units) {
      for (const v1::UnitParameter& parameter : unit.parameters()) {
        std::vector<std::string> names = {parameter.fqn()};
        names.insert(names.end(), parameter.tied_fqns().begin(), parameter.tied_fqns().end());
        for (const std::string& name : names) {
          const auto found = sources_.find(name);
          if (found == sources_.end()) continue;
          TESSERA_RETURN_IF_ERROR(CheckTensor(found->second, parameter));
          matched_[parameter.fqn()].push_back(found->second);
          used.insert(name);
        }
        if (matched_.count(parameter.fqn()) > 0) continue;
        return Fault(absl::StrCat("has no tensor ", absl::StrJoin(names, " or "),
                                  ", which the model has; give checkpoint.import_names a rule "
                                  "where its name is another"));
      }
    }
    for (const auto& [name, source] : sources_) {
      if (used.count(name) > 0) continue;
      return Fault(
          absl::StrCat("has the tensor ", Shown(source, name),
                       ", which is no parameter of the model; give "
                       "checkpoint.import_names a rule with \"to\": \"\" to leave it out"));
    }
    return absl::OkStatus();
  }

  absl::Status FillUnit(int unit, const LoadTarget& target) {
    const ShardSpan shard = ShardArray(target.store, unit, kParameterArray);
    const int64_t bytes = DTypeBytes(shard.dtype);
    std::memset(shard.data, 0, static_cast<size_t>(shard.bytes()));
    for (const ShardRecord& record :
         RecordsOfShard(target.units[unit], target.layouts[unit], target.shard_index)) {
      const v1::UnitParameter& parameter = target.units[unit].parameters(record.parameter);
      const std::vector<Source>& sources = matched_[parameter.fqn()];
      char* out = shard.data + record.offset_in_shard * bytes;
      TESSERA_RETURN_IF_ERROR(Read(sources[0], record, shard.dtype, out));
      for (size_t i = 1; i < sources.size(); ++i) {
        std::vector<char> again(static_cast<size_t>((record.end - record.begin) * bytes));
        TESSERA_RETURN_IF_ERROR(Read(sources[i], record, shard.dtype, again.data()));
        if (std::memcmp(again.data(), out, again.size()) == 0) continue;
        return Fault(absl::StrCat("has other values in ", sources[i].tensor->name, " than in ",
                                  sources[0].tensor->name, ", which are one parameter (tied)"));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Fault(absl::string_view message) const {
    return InvalidField(kField, absl::StrCat(path_, " ", message));
  }
  // "wte.weight (transformer.wte.weight)" where a rule has renamed it.
  static std::string Shown(const Source& source, const std::string& name) {
    return source.tensor->name == name ? name : absl::StrCat(name, " (", source.tensor->name, ")");
  }

  absl::Status NameTensors() {
    for (size_t file = 0; file < readers_.size(); ++file) {
      for (const SafetensorsTensor& tensor : readers_[file].tensors()) {
        const std::string name = rules_.Apply(tensor.name);
        if (name.empty()) continue;
        const auto [other, added] = sources_.emplace(name, Source{file, &tensor});
        if (added) continue;
        return Fault(absl::StrCat("has two tensors that are called ", name, ": ",
                                  other->second.tensor->name, " and ", tensor.name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTensor(const Source& source, const v1::UnitParameter& parameter) const {
    const SafetensorsTensor& tensor = *source.tensor;
    if (!std::equal(tensor.shape.begin(), tensor.shape.end(), parameter.shape().begin(),
                    parameter.shape().end())) {
      return Fault(absl::StrCat("has ", Shown(source, parameter.fqn()), " with the shape [",
                                absl::StrJoin(tensor.shape, ", "), "], and the model's is [",
                                absl::StrJoin(parameter.shape(), ", "), "]"));
    }
    if (IsTrainable(tensor.dtype)) return absl::OkStatus();
    return Fault(absl::StrCat("has ", Shown(source, parameter.fqn()), " in ",
                              DTypeName(tensor.dtype),
                              "; float64, float32, float16 and bfloat16 can be imported"));
  }

  // Elements of the parameter, converted to `dtype`.
  absl::Status Read(const Source& source, const ShardRecord& record, DType dtype, char* out) const {
    const SafetensorsReader& reader = readers_[source.file];
    const DType from = source.tensor->dtype;
    const int64_t from_bytes = DTypeBytes(from), to_bytes = DTypeBytes(dtype);
    if (from == dtype) {
      return reader.Read(*source.tensor, record.begin * from_bytes,
                         (record.end - record.begin) * from_bytes, out);
    }
    std::vector<char> run(static_cast<size_t>(kRunNumel * from_bytes));
    for (int64_t begin = record.begin; begin < record.end; begin += kRunNumel) {
      const int64_t numel = std::min(kRunNumel, record.end - begin);
      TESSERA_RETURN_IF_ERROR(
          reader.Read(*source.tensor, begin * from_bytes, numel * from_bytes, run.data()));
      for (int64_t i = 0; i < numel; ++i, out += to_bytes)
        SetValue(dtype, ValueAt(from, run.data(), i), out);
    }
    return absl::OkStatus();
  }

  std::string path_;
  NameRules rules_;
  std::vector<SafetensorsReader> readers_;
  std::map<std::string, Source> sources_;               // by the model's name
  std::map<std::string, std::vector<Source>> matched_;  // by parameter
};

}  // namespace

absl::Status ImportValues(const LoadTarget& target) {
  absl::StatusOr<Importer> importer = Importer::Open(target.job.checkpoint());
  if (!importer.ok()) {
    const absl::Status status = importer.status();
    return Field(status) == kField ? status : Annotate(status, kField);
  }
  TESSERA_RETURN_IF_ERROR(importer->Match(target));
  for (size_t unit = 0; unit < target.units.size(); ++unit)
    TESSERA_RETURN_IF_ERROR(importer->FillUnit(static_cast<int>(unit), target));
  if (target.log)
    LogInfo(absl::StrCat("starts from the values of ", target.job.checkpoint().import()));
  return absl::OkStatus();
}

}  // namespace tessera
