#include "worker/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/file_roots.h"
#include "common/safetensors_header.h"
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
absl::Status WriteUnits(Session& session, const NameRules& rules, int fd, const std::string& path) {
  for (int unit = 0; unit < session.plan().units_size(); ++unit) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<SummonedParameter> parameters,
                             session.SummonUnit(unit, /*keep=*/fd >= 0));
    for (const SummonedParameter& parameter : parameters) {
      if (rules.Apply(parameter.fqn).empty()) continue;
      TESSERA_RETURN_IF_ERROR(
          WriteAll(fd, parameter.bytes.data(), static_cast<int64_t>(parameter.bytes.size()), path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ExportStart(const v1::Plan& plan, const NameRules& rules) {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> names;
  for (const v1::Unit& unit : plan.units()) {
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      const std::string name = rules.Apply(parameter.fqn());
      if (name.empty()) continue;
      const auto [other, added] = names.emplace(name, parameter.fqn());
      if (!added) {
        return InvalidField("checkpoint.export_names",
                            absl::StrCat(other->second, " and ", parameter.fqn(),
                                         " are both called ", name, "; change a rule"));
      }
      SafetensorsTensor& tensor = tensors.emplace_back();
      tensor.name = name;
      tensor.dtype = unit.original_dtype();
      tensor.shape.assign(parameter.shape().begin(), parameter.shape().end());
    }
  }
  return SafetensorsStart(tensors, {{"format", "pt"}});
}

absl::StatusOr<UniqueFd> PrepareDirectory(const v1::JobSpec& job, int rank) {
  const std::string& directory = job.checkpoint().dir();
  if (rank != 0 || directory.empty() || (!WantsExport(job) && !job.checkpoint().save()))
    return UniqueFd();
  TESSERA_RETURN_IF_ERROR(FileRoots::OfProcess().CheckCheckpoint("checkpoint.dir", directory));
  std::error_code error;
  std::filesystem::create_directories(WantsExport(job) ? ExportDirectory(job) : directory, error);
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
  TESSERA_ASSIGN_OR_RETURN(
      const NameRules rules,
      NameRules::Create("checkpoint.export_names", session.job().checkpoint().export_names()));
  TESSERA_ASSIGN_OR_RETURN(const std::string start, ExportStart(session.plan(), rules));
  if (session.rank() != 0) {
    TESSERA_RETURN_IF_ERROR(WriteUnits(session, rules, -1, path));
    return std::string();
  }
  const std::string temporary = absl::StrCat(path, ".writing");
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid())
    return absl::InternalError(
        absl::StrCat("cannot create ", temporary, ": ", std::strerror(errno)));
  absl::Status status =
      WriteAll(file.get(), start.data(), static_cast<int64_t>(start.size()), temporary);
  if (status.ok()) status = WriteUnits(session, rules, file.get(), temporary);
  if (status.ok()) status = SyncAndRename(file.get(), temporary, path, directory);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return path;
}

}  // namespace tessera
