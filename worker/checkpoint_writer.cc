#include "worker/checkpoint_writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint_index.h"
#include "common/checkpoint_reader.h"
#include "common/dtype.h"
#include "common/logging.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "worker/shard_arrays.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Written at once, and synced at once: so that the sync at the end is short, and a disk that stands
// still is told from one that is slow.
constexpr int64_t kWriteBytes = int64_t{4} << 20;
constexpr int64_t kSyncBytes = int64_t{64} << 20;

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::InternalError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

absl::Status SyncDirectory(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return Failed("sync", path);
  return absl::OkStatus();
}

// A file that is being written: its descriptor and what is not yet on the disk.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(std::string path) {
    NewFile file;
    file.fd_.Reset(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.fd_.valid()) return Failed("create", path);
    file.path_ = std::move(path);
    return file;
  }

  absl::Status Write(const char* data, int64_t bytes, const WriteProgress& progress) {
    while (bytes > 0) {
      TESSERA_RETURN_IF_ERROR(progress(""));
      const ssize_t written = write(fd_.get(), data, std::min(bytes, kWriteBytes));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return Failed("write", path_);
      data += written;
      bytes -= written;
      unsynced_ += written;
      if (unsynced_ < kSyncBytes) continue;
      if (fdatasync(fd_.get()) != 0) return Failed("sync", path_);
      unsynced_ = 0;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() {
    if (fsync(fd_.get()) != 0) return Failed("sync", path_);
    // What a network file system has to say of the writes, it may say when the file is closed.
    if (close(fd_.Release()) != 0) return Failed("close", path_);
    return absl::OkStatus();
  }

 private:
  UniqueFd fd_;
  std::string path_;
  int64_t unsynced_ = 0;
};

// Puts `from` in the place of `to`; an older `to` is then called `from`.
absl::Status PutInPlace(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return absl::OkStatus();
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  // A file system that cannot exchange: for a moment there is none of this step.
  std::error_code error;
  const std::string away = absl::StrCat(from, ".old", kWritingSuffix);
  if (fs::exists(to, error) && rename(to.c_str(), away.c_str()) != 0) return Failed("rename", to);
  if (rename(from.c_str(), to.c_str()) != 0) return Failed("rename", from);
  return absl::OkStatus();
}

bool IsLeftover(absl::string_view name) {
  return absl::StartsWith(name, "step-") && absl::EndsWith(name, kWritingSuffix);
}

void Remove(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) LogInfo(absl::StrCat("cannot remove ", path, ": ", error.message()));
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

std::string RandomName() {
  std::random_device random;
  return absl::StrCat(absl::Hex(random(), absl::kZeroPad8));
}

// Gives the older checkpoints a leftover's name first, so that one which is removed by half is
// never taken for one that is whole.
void RemoveOlder(const std::string& directory, int64_t keep) {
  const absl::StatusOr<FoundCheckpoints> found = FindCheckpoints(directory);
  if (!found.ok()) return LogInfo(std::string(found.status().message()));
  for (size_t i = static_cast<size_t>(keep); i < found->whole.size(); ++i) {
    const std::string& path = found->whole[i].path;
    if (rename(path.c_str(), absl::StrCat(path, ".", RandomName(), kWritingSuffix).c_str()) != 0)
      LogInfo(std::string(Failed("remove", path).message()));
  }
}

// Lengths of the shards' files, which are all there; nothing else is.
absl::Status ListFiles(const std::string& writing, v1::CheckpointIndex* index) {
  std::set<std::string> names;
  for (int shard = 0; shard < index->shard_count(); ++shard) {
    const std::string name = CheckpointShardFile(shard, index->shard_count());
    struct stat about = {};
    const std::string path = absl::StrCat(writing, "/", name);
    if (stat(path.c_str(), &about) != 0) return Failed("find", path);
    v1::CheckpointFile& file = *index->add_files();
    file.set_name(name);
    file.set_bytes(about.st_size);
    names.insert(name);
  }
  for (const std::string& name : NamesIn(writing)) {
    if (names.count(name) == 0) Remove(absl::StrCat(writing, "/", name));
  }
  return absl::OkStatus();
}

}  // namespace

v1::CheckpointIndex MakeCheckpointIndex(const v1::JobSpec& job, const v1::Layout& layout,
                                        absl::Span<const v1::Unit> units,
                                        absl::Span<const v1::UnitLayout> layouts,
                                        const ShardStore& store) {
  v1::CheckpointIndex index;
  index.set_version(kCheckpointVersion);
  index.set_job(job.name());
  index.set_seed(job.seed());
  index.set_world_size(layout.world_size());
  index.set_shard_count(layout.shard_count());
  index.set_sharding_strategy(layout.sharding_strategy());
  index.set_plan_fingerprint(layout.plan_fingerprint());
  index.set_layout_fingerprint(layout.layout_fingerprint());
  index.set_optimizer(job.optimizer().name());
  const int arrays = layout.rank_file().optimizer_arrays();
  for (std::string& name : OptimizerArrayNames(job.optimizer().name(), arrays))
    index.add_optimizer_arrays(std::move(name));
  for (size_t u = 0; u < units.size(); ++u) {
    const int number = static_cast<int>(u);
    v1::CheckpointUnit& unit = *index.add_units();
    unit.set_fqn(units[u].fqn());
    unit.set_dtype(ShardArray(store, number, kParameterArray).dtype);
    unit.set_optimizer_dtype(ShardArray(store, number, arrays > 0 ? 0 : kParameterArray).dtype);
    unit.set_shard_numel(layouts[u].shard_numel());
    for (int p = 0; p < units[u].parameters_size(); ++p) {
      v1::CheckpointParameter& parameter = *unit.add_parameters();
      parameter.set_fqn(units[u].parameters(p).fqn());
      *parameter.mutable_tied_fqns() = units[u].parameters(p).tied_fqns();
      *parameter.mutable_shape() = units[u].parameters(p).shape();
      parameter.set_offset(layouts[u].parameters(p).offset());
    }
  }
  return index;
}

void SetTrainingState(const TrainingState& state, v1::CheckpointIndex* index) {
  index->set_step(state.step);
  index->set_optimizer_updates(state.updates);
  index->set_data_position(state.data_position);
  index->set_loss_scale(state.loss_scale);
  index->set_loss_scale_steps(state.loss_scale_steps);
}

std::vector<absl::Span<const char>> ShardPieces(const v1::CheckpointIndex& index, int shard,
                                                const ShardStore& store) {
  std::vector<absl::Span<const char>> pieces;
  ForEachSlice(index, shard, [&](int unit, int array, const ShardRecord& record) {
    const ShardSpan whole = ShardArray(store, unit, array);
    const int64_t bytes = DTypeBytes(whole.dtype);
    pieces.emplace_back(whole.data + record.offset_in_shard * bytes,
                        static_cast<size_t>((record.end - record.begin) * bytes));
  });
  return pieces;
}

absl::StatusOr<std::string> MakeWritingDirectory(const std::string& directory, int64_t step) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    return absl::InternalError(absl::StrCat("cannot make ", directory, ": ", error.message()));
  for (;;) {
    std::string name = absl::StrCat(CheckpointDirectory(step), ".", RandomName(), kWritingSuffix);
    const std::string path = absl::StrCat(directory, "/", name);
    if (mkdir(path.c_str(), 0755) == 0) return name;
    if (errno != EEXIST) return Failed("make", path);
  }
}

absl::Status WriteShardFile(const std::string& directory, const std::string& name,
                            absl::string_view start,
                            absl::Span<const absl::Span<const char>> pieces,
                            const WriteProgress& progress) {
  TESSERA_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(absl::StrCat(directory, "/", name)));
  TESSERA_RETURN_IF_ERROR(file.Write(start.data(), static_cast<int64_t>(start.size()), progress));
  for (size_t i = 0; i < pieces.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        file.Write(pieces[i].data(), static_cast<int64_t>(pieces[i].size()), progress));
    if (i == 0) TESSERA_RETURN_IF_ERROR(progress("checkpoint_write"));
  }
  TESSERA_RETURN_IF_ERROR(file.Sync());
  TESSERA_RETURN_IF_ERROR(SyncDirectory(directory));
  return progress("checkpoint_written");
}

absl::Status CommitCheckpoint(const std::string& directory, const std::string& writing,
                              int64_t keep, v1::CheckpointIndex index,
                              const WriteProgress& progress) {
  const std::string path = absl::StrCat(directory, "/", writing);
  TESSERA_RETURN_IF_ERROR(ListFiles(path, &index));
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoints found, FindCheckpoints(directory));
  for (const std::string& torn : found.torn) LogInfo(absl::StrCat("left alone: ", torn));
  index.set_sequence(found.whole.empty() ? 1 : found.whole.front().sequence + 1);

  TESSERA_ASSIGN_OR_RETURN(NewFile file,
                           NewFile::Create(absl::StrCat(path, "/", kCheckpointIndexFile)));
  const std::string json = CheckpointIndexJson(index);
  TESSERA_RETURN_IF_ERROR(file.Write(json.data(), static_cast<int64_t>(json.size()), progress));
  TESSERA_RETURN_IF_ERROR(progress("checkpoint_index"));
  TESSERA_RETURN_IF_ERROR(file.Sync());
  TESSERA_RETURN_IF_ERROR(SyncDirectory(path));
  TESSERA_RETURN_IF_ERROR(progress("checkpoint_rename"));
  TESSERA_RETURN_IF_ERROR(
      PutInPlace(path, absl::StrCat(directory, "/", CheckpointDirectory(index.step()))));
  TESSERA_RETURN_IF_ERROR(SyncDirectory(directory));
  TESSERA_RETURN_IF_ERROR(progress("checkpoint_renamed"));

  RemoveOlder(directory, keep);
  TESSERA_RETURN_IF_ERROR(SyncDirectory(directory));
  TESSERA_RETURN_IF_ERROR(progress("checkpoint_remove"));
  RemoveLeftovers(directory, "");
  return absl::OkStatus();
}

void RemoveLeftovers(const std::string& directory, absl::string_view except) {
  for (const std::string& name : NamesIn(directory)) {
    if (IsLeftover(name) && name != except) Remove(absl::StrCat(directory, "/", name));
  }
}

}  // namespace tessera
