// Fills a rank's shards from a checkpoint that any mesh and wrap plan has saved, or from a model in
// safetensors files. Each rank reads the ranges of its own shard, straight into it.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const TrainingState state,
//       LoadValues({.job = job, .units = units, .layouts = layouts, .shard_index = 0,
//                   .store = *store, .log = rank == 0}));
//
// Names, shapes and dtypes are checked before a value is read. Errors are INVALID_ARGUMENT with the
// field (checkpoint.resume, checkpoint.import), the path and the parameter; INTERNAL where a file
// that was there cannot be read.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_CHECKPOINT_LOADER_H_
#define TESSERA_WORKER_CHECKPOINT_LOADER_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/shard_store.h"
#include "worker/training_state.h"

namespace tessera {

// What is to be filled. All of it outlives the call.
struct LoadTarget {
  const v1::JobSpec& job;  // resolved
  absl::Span<const v1::Unit> units;
  absl::Span<const v1::UnitLayout> layouts;
  int shard_index = 0;
  const ShardStore& store;
  bool log = false;  // on one rank: what a reader may not expect
  // FormHost.run and FormHost.attempt: from the second attempt on the job goes on from its own
  // newest whole checkpoint, if it has one.
  std::string run = "";
  int attempt = 1;
};

// The checkpoint that checkpoint.resume means: its path; with auto the newest whole one of
// checkpoint.dir (torn ones are logged if `log`), or none; with none none.
absl::StatusOr<std::optional<std::string>> CheckpointToResume(const v1::CheckpointSpec& checkpoint,
                                                              bool log);

// The newest whole checkpoint of checkpoint.dir that the run has saved, or none.
absl::StatusOr<std::optional<std::string>> NewestOfRun(const v1::CheckpointSpec& checkpoint,
                                                       const std::string& run);

// Parameters and optimizer state. Refused: other names (a tied parameter is found by any of its
// own), shapes, dtypes, or another optimizer.
absl::StatusOr<TrainingState> LoadCheckpoint(const std::string& path, const LoadTarget& target);

// Parameters alone, from checkpoint.import, renamed by checkpoint.import_names and converted to the
// model's dtype. Refused: a parameter that is not there, a tensor that is no parameter (unless a
// rule leaves it out), another shape, integers, two tensors of one parameter with other values.
absl::Status ImportValues(const LoadTarget& target);

// What checkpoint.resume or else checkpoint.import means, over what the shards hold already.
// Returns where training stands.
absl::StatusOr<TrainingState> LoadValues(const LoadTarget& target);

}  // namespace tessera

#endif  // TESSERA_WORKER_CHECKPOINT_LOADER_H_
