// What the commands read: job files, models and the --set flags, made into a JobSpec.
//
//   TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec,
//                            LoadJob({.file = "job.json", .sets = {"steps=10"}}));
//
// Every error is INVALID_ARGUMENT, one line that names the file, flag or field and says what to do.
#ifndef TESSERA_CLIENT_JOB_INPUT_H_
#define TESSERA_CLIENT_JOB_INPUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct JobInput {
  std::string file;
  // Each "PATH=VALUE", applied in order after the file.
  std::vector<std::string> sets = {};
  // Sets mesh.min_workers and mesh.max_workers, after `sets`.
  std::optional<int64_t> workers = {};
};

// The file with the changes applied, and model.file, if it has one, read into model.spec. Nothing
// else is filled in.
absl::StatusOr<v1::JobSpec> LoadJob(const JobInput& input);

// A whole file of at most 256 MiB. INVALID_ARGUMENT: it is missing, a directory, not readable,
// empty or larger.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// For a job that is sent to workers on other hosts: data and checkpoint.dir are looked for there,
// so a relative path would be in whatever folder a worker runs. INVALID_ARGUMENT: one of them is
// relative.
absl::Status CheckPathsOfSubmit(const v1::JobSpec& spec);

// Checks that `directory`, or what can be made of it, may be written to. Makes nothing.
// INVALID_ARGUMENT: it is no directory, or its nearest existing parent is none or is not writable.
absl::Status CheckWritableDirectory(absl::string_view field, const std::string& directory);

}  // namespace tessera

#endif  // TESSERA_CLIENT_JOB_INPUT_H_
