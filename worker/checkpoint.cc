#include "worker/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace tessera {
namespace {

bool WantsExport(const v1::JobSpec& job) {
  return job.checkpoint().export_() && !job.checkpoint().dir().empty();
}

std::string ExportDirectory(const v1::JobSpec& job) {
  return absl::StrCat(job.checkpoint().dir(), "/export");
}

// safetensors' own names.
const char* SafetensorsDType(DType dtype) {
  switch (dtype) {
    case v1::FLOAT64:
      return "F64";
    case v1::FLOAT16:
      return "F16";
    case v1::BFLOAT16:
      return "BF16";
    default:
      return "F32";
  }
}

absl::Status WriteAll(int fd, const void* data, int64_t bytes, const std::string& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(fd, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      return absl::InternalError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
    next += written;
    bytes -= written;
  }
  return absl::OkStatus();
}

absl::Status SyncAndRename(int fd, const std::string& temporary, const std::string& path,
                           const std::string& directory) {
  if (fsync(fd) != 0)
    return absl::InternalError(absl::StrCat("cannot sync ", temporary, ": ", std::strerror(errno)));
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot rename ", temporary, " to ", path, ": ", std::strerror(errno)));
  }
  const UniqueFd folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid() || fsync(folder.get()) != 0) {
    return absl::InternalError(absl::StrCat("cannot sync ", directory, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Rank 0 writes (fd is -1 elsewhere), one unit in memory at a time.
absl::Status WriteUnits(Session& session, int fd, const std::string& path) {
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<SummonedParameter> parameters,
                             session.SummonUnit(unit, /*keep=*/fd >= 0));
    for (const SummonedParameter& parameter : parameters) {
      TESSERA_RETURN_IF_ERROR(
          WriteAll(fd, parameter.bytes.data(), static_cast<int64_t>(parameter.bytes.size()), path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string SafetensorsHeader(const v1::Plan& plan) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      const int64_t bytes = parameter.numel() * DTypeBytes(unit.original_dtype());
      header[parameter.fqn()] = {
          {"dtype", SafetensorsDType(unit.original_dtype())},
          {"shape", std::vector<int64_t>(parameter.shape().begin(), parameter.shape().end())},
          {"data_offsets", {offset, offset + bytes}}};
      offset += bytes;
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

absl::StatusOr<UniqueFd> PrepareExport(const v1::JobSpec& job, int rank) {
  if (rank != 0 || !WantsExport(job)) return UniqueFd();
  const std::string directory = ExportDirectory(job);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    return InvalidField("checkpoint.dir",
                        absl::StrCat("cannot make ", directory, ": ", error.message()));
  if (access(directory.c_str(), W_OK) != 0) {
    return InvalidField("checkpoint.dir",
                        absl::StrCat("cannot write into ", directory, ": ", std::strerror(errno)));
  }
  UniqueFd lock(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.dir: another job that runs is to write into ", directory,
                     "; give this one another checkpoint.dir"));
  }
  return lock;
}

absl::StatusOr<std::string> WriteExport(Session& session) {
  if (!WantsExport(session.job())) return std::string();
  const std::string directory = ExportDirectory(session.job());
  const std::string path = absl::StrCat(directory, "/model.safetensors");
  if (session.rank() != 0) {
    TESSERA_RETURN_IF_ERROR(WriteUnits(session, -1, path));
    return std::string();
  }
  const std::string temporary = absl::StrCat(path, ".writing");
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid())
    return absl::InternalError(
        absl::StrCat("cannot create ", temporary, ": ", std::strerror(errno)));
  const std::string header = SafetensorsHeader(session.plan());
  absl::Status status =
      WriteAll(file.get(), header.data(), static_cast<int64_t>(header.size()), temporary);
  if (status.ok()) status = WriteUnits(session, file.get(), temporary);
  if (status.ok()) status = SyncAndRename(file.get(), temporary, path, directory);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return path;
}

}  // namespace tessera
