#include "client/job_input.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace tessera {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

absl::Status ApplySet(v1::JobSpec* spec, const std::string& set) {
  const size_t equals = set.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidField("--set",
                        absl::StrCat("\"", set, "\" is not PATH=VALUE, e.g. --set steps=10"));
  }
  return Annotate(SetField(spec, set.substr(0, equals), set.substr(equals + 1)), "--set");
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  // Not blocking: a named pipe without a writer must not hang the command.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return InvalidField(path, absl::StrCat("cannot be read: ", strerror(errno)));
  struct stat about = {};
  if (fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    return InvalidField(path, "is not a regular file; give a JSON file");
  }
  if (about.st_size == 0) return InvalidField(path, "is empty; give a JSON file");
  if (about.st_size > kMaxFileBytes) {
    return InvalidField(path, absl::StrCat("has more than ", kMaxFileBytes, " bytes"));
  }
  std::string text(static_cast<size_t>(about.st_size), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return InvalidField(path, absl::StrCat("cannot be read: ", strerror(errno)));
    if (got == 0) break;  // it shrank meanwhile
    filled += static_cast<size_t>(got);
  }
  text.resize(filled);
  return text;
}

absl::StatusOr<v1::JobSpec> LoadJob(const JobInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(input.file));
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpec(text, input.file));
  for (const std::string& set : input.sets) TESSERA_RETURN_IF_ERROR(ApplySet(&spec, set));
  if (input.workers.has_value()) {
    spec.mutable_mesh()->set_min_workers(*input.workers);
    spec.mutable_mesh()->set_max_workers(*input.workers);
  }
  if (spec.model().has_file()) {
    if (spec.model().has_builtin() || spec.model().has_spec()) {
      return InvalidField("model.file",
                          "stands beside another model; give one of builtin, spec and file");
    }
    const std::string path = spec.model().file();
    TESSERA_ASSIGN_OR_RETURN(const std::string model, ReadTextFile(path));
    TESSERA_ASSIGN_OR_RETURN(*spec.mutable_model()->mutable_spec(), ParseModelSpec(model, path));
    spec.mutable_model()->clear_file();
  }
  return spec;
}

absl::Status CheckPathsOfSubmit(const v1::JobSpec& spec) {
  for (const auto& [field, path] :
       {std::pair("data", spec.data()), std::pair("checkpoint.dir", spec.checkpoint().dir()),
        std::pair("checkpoint.resume", spec.checkpoint().resume()),
        std::pair("checkpoint.import", spec.checkpoint().import())}) {
    if (path.empty() || std::filesystem::path(path).is_absolute()) continue;
    if (path == spec.checkpoint().resume() && (path == "none" || path == "auto")) continue;
    return InvalidField(field, absl::StrCat("\"", path,
                                            "\" is a relative path, and workers may run "
                                            "anywhere; give an absolute path that they see"));
  }
  return absl::OkStatus();
}

absl::Status CheckWritableDirectory(absl::string_view field, const std::string& directory) {
  std::filesystem::path path(directory);
  std::error_code error;
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  if (!std::filesystem::is_directory(path, error)) {
    return InvalidField(field,
                        absl::StrCat(path.string(), " is not a directory; give another path"));
  }
  if (access(path.c_str(), W_OK | X_OK) != 0) {
    return InvalidField(field, absl::StrCat(path.string(), " cannot be written to: ",
                                            strerror(errno), "; give another path"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
