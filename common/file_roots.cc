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

absl::Status FileRoots::CheckData(const std::string& path) const {
  // "": the default text, which no job file chooses.
  return path.empty() ? absl::OkStatus() : CheckIn("data", path, data, "--data_root");
}

absl::Status FileRoots::CheckImport(const std::string& path) const {
  if (path.empty() || (!checkpoints.empty() && CheckCheckpoint("checkpoint.import", path).ok())) {
    return absl::OkStatus();
  }
  return CheckIn("checkpoint.import", path, data, "--data_root");
}

absl::Status FileRoots::CheckCheckpoint(absl::string_view field, const std::string& path) const {
  return path.empty() ? absl::OkStatus() : CheckIn(field, path, checkpoints, "--checkpoint_root");
}

absl::Status FileRoots::CheckJob(const v1::JobSpec& spec) const {
  const v1::CheckpointSpec& checkpoint = spec.checkpoint();
  TESSERA_RETURN_IF_ERROR(CheckData(spec.data()));
  TESSERA_RETURN_IF_ERROR(CheckCheckpoint("checkpoint.dir", checkpoint.dir()));
  TESSERA_RETURN_IF_ERROR(CheckImport(checkpoint.import()));
  const std::string& resume = checkpoint.resume();
  if (resume == "none" || resume == "auto") return absl::OkStatus();
  return CheckCheckpoint("checkpoint.resume", resume);
}

const FileRoots& FileRoots::OfProcess() {
  static const auto& roots = *new FileRoots([] {
    const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
    if (!env.ok()) return FileRoots();
    return FileRoots{.data = env->data_root, .checkpoints = env->checkpoint_root};
  }());
  return roots;
}

}  // namespace tessera
