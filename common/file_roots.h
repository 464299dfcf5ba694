// The folders that a job's files have to be in, so that a job file cannot name every file that its
// workers may read or write.
//
//   const FileRoots roots{.data = "/srv/data", .checkpoints = "/srv/checkpoints"};
//   TESSERA_RETURN_IF_ERROR(roots.CheckJob(spec));
//
// Paths are compared with symbolic links and ".." resolved, as far as they exist. Who can change
// links in a root while a job opens its files can still lead it out (SECURITY.md).
#ifndef TESSERA_COMMON_FILE_ROOTS_H_
#define TESSERA_COMMON_FILE_ROOTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct FileRoots {
  // Of `data` and `checkpoint.import`. "": anywhere.
  std::string data = "";
  // Of `checkpoint.dir` and `checkpoint.resume`; `checkpoint.import` may be in it too. "":
  // anywhere.
  std::string checkpoints = "";

  bool any() const { return !data.empty() || !checkpoints.empty(); }
  // INVALID_ARGUMENT (field --data_root or --checkpoint_root): one is no folder.
  absl::Status Check() const;
  // INVALID_ARGUMENT of the field: the path is relative or leads out of its root.
  absl::Status CheckData(const std::string& path) const;
  absl::Status CheckImport(const std::string& path) const;
  // `field`: checkpoint.dir or checkpoint.resume.
  absl::Status CheckCheckpoint(absl::string_view field, const std::string& path) const;
  // All paths of a job, before it is made; workers check each again when they open it.
  absl::Status CheckJob(const v1::JobSpec& spec) const;

  // Of this process's environment, read on first use.
  static const FileRoots& OfProcess();
};

}  // namespace tessera

#endif  // TESSERA_COMMON_FILE_ROOTS_H_
