// Writes checkpoints to disk so that a crash at any moment leaves the last one whole.
//
//   step-600.K.writing/   made by rank 0; every rank writes its shard's file into it and syncs it
//   step-600              the same directory, renamed by rank 0 once all have
//
// Whatever ends in kWritingSuffix is what a crash left, or is being written or removed; nobody
// reads it, and the next save removes it.
//
// Thread-safety: functions of their arguments and the file system.
#ifndef TESSERA_WORKER_CHECKPOINT_WRITER_H_
#define TESSERA_WORKER_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/checkpoint.pb.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "worker/shard_store.h"
#include "worker/training_state.h"

namespace tessera {

// Called as the writing goes on, with the name of a fault point or "". An error ends it.
using WriteProgress = std::function<absl::Status(absl::string_view point)>;

// The index of a checkpoint of these units, without its files and sequence. `layout` may be without
// its units.
v1::CheckpointIndex MakeCheckpointIndex(const v1::JobSpec& job, const v1::Layout& layout,
                                        absl::Span<const v1::Unit> units,
                                        absl::Span<const v1::UnitLayout> layouts,
                                        const ShardStore& store);
void SetTrainingState(const TrainingState& state, v1::CheckpointIndex* index);

// The bytes of the shard's tensors in the store, in the order of the shard's file.
std::vector<absl::Span<const char>> ShardPieces(const v1::CheckpointIndex& index, int shard,
                                                const ShardStore& store);

// Makes DIR/step-N.K.writing, empty, for a K that nobody had. Returns its name without DIR.
// INTERNAL: names the directory.
absl::StatusOr<std::string> MakeWritingDirectory(const std::string& directory, int64_t step);

// Writes `start` and `pieces` to a new file of `directory` and syncs both, in steps of a few MiB.
// INTERNAL: names the file. Or as `progress` says.
absl::Status WriteShardFile(const std::string& directory, const std::string& name,
                            absl::string_view start,
                            absl::Span<const absl::Span<const char>> pieces,
                            const WriteProgress& progress);

// Makes the checkpoint whole, when all its shards are written: adds the index with the files'
// lengths, syncs, and renames `writing` (a name in `directory`) to step-N, in the place of an older
// step-N if there is one. Then removes what is older than the newest `keep`. INTERNAL: names the
// file; there is no new checkpoint then. What cannot be removed is only logged.
absl::Status CommitCheckpoint(const std::string& directory, const std::string& writing,
                              int64_t keep, v1::CheckpointIndex index,
                              const WriteProgress& progress);

// Removes what crashes left in `directory`, but not `except`. What cannot be removed is logged.
void RemoveLeftovers(const std::string& directory, absl::string_view except);

}  // namespace tessera

#endif  // TESSERA_WORKER_CHECKPOINT_WRITER_H_
