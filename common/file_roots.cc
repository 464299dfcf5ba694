#include "common/file_roots.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/process_env.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Whether `path`, resolved, is `root` or below it.
bool IsIn(const std::string& root, const std::string& path) {
  std::error_code error;
  const fs::path top = fs::canonical(root, error);
  if (error) return false;
  const fs::path place = fs::weakly_canonical(path, error);
  if (error) return false;
  const auto [end, unused] = std::mismatch(top.begin(), top.end(), place.begin(), place.end());
  return end == top.end();
}

absl::Status CheckIn(absl::string_view field, const std::string& path, const std::string& root,
                     absl::string_view flag) {
  if (root.empty() || (fs::path(path).is_absolute() && IsIn(root, path))) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(path, " is not in ", root, ", where ", flag,
                                          " says it has to be; give an absolute path in there"));
}

absl::Status CheckRoot(absl::string_view flag, const std::string& root) {
  std::error_code error;
  if (root.empty() || (fs::path(root).is_absolute() && fs::is_directory(root, error))) {
    return absl::OkStatus();
  }
  return InvalidField(flag, absl::StrCat(root, " is no folder; give an absolute path of one"));
}

}  // namespace

absl::Status FileRoots::Check() const {
  TESSERA_RETURN_IF_ERROR(CheckRoot("--data_root", data));
  return CheckRoot("--checkpoint_root", checkpoints);
}

absl::Status FileRoots::CheckJob(const v1::JobSpec& spec) const {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  // "": the default text, which no job file chooses.
  if (!spec.data().empty()) {
    TESSERA_RETURN_IF_ERROR(CheckIn("data", spec.data(), data, "--data_root"));
  }
  if (!checkpoint.dir().empty()) {
    TESSERA_RETURN_IF_ERROR(
        CheckIn("checkpoint.dir", checkpoint.dir(), checkpoints, "--checkpoint_root"));
  }
  const std::string& resume = checkpoint.resume();
  if (!resume.empty() && resume != "none" && resume != "auto") {
    TESSERA_RETURN_IF_ERROR(CheckIn("checkpoint.resume", resume, checkpoints, "--checkpoint_root"));
  }
  if (checkpoint.import().empty() || data.empty()) return absl::OkStatus();
  if (!checkpoints.empty() && fs::path(checkpoint.import()).is_absolute() &&
      IsIn(checkpoints, checkpoint.import())) {
    return absl::OkStatus();
  }
  return CheckIn("checkpoint.import", checkpoint.import(), data, "--data_root");
}

absl::Status FileRoots::CheckFile(absl::string_view field, const std::string& path) const {
  if (data.empty() || checkpoints.empty() || IsIn(data, path) || IsIn(checkpoints, path)) {
    return absl::OkStatus();
  }
  return InvalidField(field, absl::StrCat("leads out of ", data, " and ", checkpoints,
                                          " (--data_root, --checkpoint_root); copy the file there"));
}

const FileRoots& FileRoots::OfProcess() {
  static const auto& roots = *new FileRoots([] {
    const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
    return env.ok() ? env->roots : FileRoots();
  }());
  return roots;
}

}  // namespace tessera
