#include "common/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/fingerprint.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Of an index: some 200 bytes for each parameter.
constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

absl::StatusOr<int64_t> RegularBytes(const std::string& directory, const std::string& file) {
  struct stat about = {};
  if (stat(absl::StrCat(directory, "/", file).c_str(), &about) != 0) {
    return InvalidField(directory, absl::StrCat("is no whole checkpoint: ", file,
                                                " cannot be read: ", strerror(errno)));
  }
  if (!S_ISREG(about.st_mode))
    return InvalidField(directory, absl::StrCat("is no whole checkpoint: ", file, " is no file"));
  return about.st_size;
}

absl::StatusOr<v1::CheckpointIndex> ReadIndex(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, RegularBytes(directory, kCheckpointIndexFile));
  const std::string path = absl::StrCat(directory, "/", kCheckpointIndexFile);
  if (bytes > kMaxIndexBytes) return InvalidField(path, "is longer than an index can be");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good() && !file.eof()) return InvalidField(path, "cannot be read");
  const std::string json = text.str();
  return ParseCheckpointIndex(json, path);
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& directory) {
  CheckpointReader reader;
  reader.directory_ = directory;
  TESSERA_ASSIGN_OR_RETURN(reader.index_, ReadIndex(directory));
  for (const v1::CheckpointFile& file : reader.index_.files()) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, RegularBytes(directory, file.name()));
    if (bytes == file.bytes()) continue;
    return InvalidField(directory,
                        absl::StrCat("is no whole checkpoint: ", file.name(), " has ", bytes,
                                     " bytes, and its index says ", file.bytes()));
  }
  for (int unit = 0; unit < reader.index_.units_size(); ++unit) {
    const auto& parameters = reader.index_.units(unit).parameters();
    for (int p = 0; p < parameters.size(); ++p) {
      reader.places_[parameters[p].fqn()] = {unit, p};
      for (const std::string& tied : parameters[p].tied_fqns()) reader.places_[tied] = {unit, p};
    }
  }
  reader.shards_.resize(static_cast<size_t>(reader.index_.shard_count()));
  return reader;
}

const CheckpointPlace* CheckpointReader::Find(absl::string_view fqn) const {
  const auto found = places_.find(fqn);
  return found == places_.end() ? nullptr : &found->second;
}

DType CheckpointReader::DTypeOf(const CheckpointPlace& place, int array) const {
  const v1::CheckpointUnit& unit = index_.units(place.unit);
  return array == kParameterArray ? unit.dtype() : unit.optimizer_dtype();
}

absl::StatusOr<const SafetensorsReader*> CheckpointReader::Shard(int shard) {
  std::optional<SafetensorsReader>& reader = shards_[static_cast<size_t>(shard)];
  if (!reader.has_value()) {
    const std::string path = absl::StrCat(directory_, "/", index_.files(shard).name());
    TESSERA_ASSIGN_OR_RETURN(reader, SafetensorsReader::Open(path, path));
  }
  return &*reader;
}

absl::Status CheckpointReader::Read(const CheckpointPlace& place, int array, int64_t begin,
                                    int64_t end, char* out) {
  const v1::CheckpointUnit& unit = index_.units(place.unit);
  const v1::CheckpointParameter& wanted = parameter(place);
  const std::string name = CheckpointTensor(index_, array, wanted.fqn());
  const DType dtype = DTypeOf(place, array);
  const int64_t bytes = DTypeBytes(dtype);
  while (begin < end) {
    const int64_t shard = (wanted.offset() + begin) / unit.shard_numel();
    TESSERA_ASSIGN_OR_RETURN(const SafetensorsReader* file, Shard(static_cast<int>(shard)));
    // What of the parameter this shard has.
    const int64_t first = std::max<int64_t>(0, shard * unit.shard_numel() - wanted.offset());
    const int64_t last =
        std::min(NumelOf(wanted), (shard + 1) * unit.shard_numel() - wanted.offset());
    const SafetensorsTensor* tensor = file->Find(name);
    if (tensor == nullptr || tensor->dtype != dtype ||
        tensor->end - tensor->begin != (last - first) * bytes) {
      return InvalidField(
          TensorPlace(file->path(), name),
          absl::StrCat("should be elements ", first, " to ", last, " in ", DTypeName(dtype),
                       ", and is ", tensor == nullptr ? "not there" : "something else",
                       "; the checkpoint is damaged"));
    }
    const int64_t here = std::min(end, last);
    TESSERA_RETURN_IF_ERROR(
        file->Read(*tensor, (begin - first) * bytes, (here - begin) * bytes, out));
    out += (here - begin) * bytes;
    begin = here;
  }
  return absl::OkStatus();
}

absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::string& directory) {
  FoundCheckpoints found;
  std::error_code error;
  if (!fs::exists(directory, error)) return found;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::optional<int64_t> step = CheckpointStep(entry->path().filename().string());
    if (!step.has_value()) continue;
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(entry->path().string());
    if (!reader.ok()) {
      found.torn.push_back(std::string(reader.status().message()));
    } else {
      found.whole.push_back({entry->path().string(), *step, reader->index().sequence()});
    }
  }
  if (error) {
    return InvalidField(directory, absl::StrCat("cannot be listed: ", error.message()));
  }
  std::sort(found.whole.begin(), found.whole.end(), [](const auto& a, const auto& b) {
    return std::tie(a.sequence, a.step) > std::tie(b.sequence, b.step);
  });
  std::sort(found.torn.begin(), found.torn.end());
  return found;
}

namespace {

absl::StatusOr<std::string> HashArray(CheckpointReader& reader, const CheckpointPlace& place,
                                      int array, std::vector<char>& block) {
  const v1::CheckpointParameter& parameter = reader.parameter(place);
  const DType dtype = reader.DTypeOf(place, array);
  const int64_t numel = NumelOf(parameter);
  std::string text =
      absl::StrCat(DTypeName(dtype), " [", absl::StrJoin(parameter.shape(), ","), "]\n");
  for (int64_t begin = 0; begin < numel; begin += kHashBlockElements) {
    const int64_t end = std::min(numel, begin + kHashBlockElements);
    block.resize(static_cast<size_t>((end - begin) * DTypeBytes(dtype)));
    TESSERA_RETURN_IF_ERROR(reader.Read(place, array, begin, end, block.data()));
    absl::StrAppend(&text, Sha256Hex(absl::string_view(block.data(), block.size())), "\n");
  }
  return Sha256Hex(text);
}

}  // namespace

absl::StatusOr<v1::CheckpointHashes> HashCheckpoint(CheckpointReader& reader) {
  const v1::CheckpointIndex& index = reader.index();
  v1::CheckpointHashes hashes;
  hashes.set_path(reader.directory());
  hashes.set_step(index.step());
  hashes.set_optimizer_updates(index.optimizer_updates());
  hashes.set_data_position(index.data_position());
  hashes.set_block_elements(kHashBlockElements);
  std::map<std::string, CheckpointPlace> by_name;
  for (int unit = 0; unit < index.units_size(); ++unit) {
    for (int p = 0; p < index.units(unit).parameters_size(); ++p)
      by_name[index.units(unit).parameters(p).fqn()] = {unit, p};
  }
  std::vector<char> block;
  for (const auto& [fqn, place] : by_name) {
    const v1::CheckpointParameter& parameter = reader.parameter(place);
    v1::ParameterHash& hash = *hashes.add_parameters();
    hash.set_fqn(fqn);
    *hash.mutable_tied_fqns() = parameter.tied_fqns();
    *hash.mutable_shape() = parameter.shape();
    hash.set_dtype(index.units(place.unit).dtype());
    TESSERA_ASSIGN_OR_RETURN(*hash.mutable_sha256(),
                             HashArray(reader, place, kParameterArray, block));
    for (int array = 0; array < index.optimizer_arrays_size(); ++array) {
      TESSERA_ASSIGN_OR_RETURN(*hash.add_optimizer_sha256(),
                               HashArray(reader, place, array, block));
    }
  }
  return hashes;
}

}  // namespace tessera
