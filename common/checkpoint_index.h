// The format of checkpoints, without the files (docs/checkpoints.md): names, the index, and what of
// which parameter is in which shard's file.
//
//   DIR/step-600/index.json                         v1::CheckpointIndex
//   DIR/step-600/shard-00001-of-00002.safetensors   tensors "param:FQN", "exp_avg:FQN", ...
//
// A checkpoint that is being written has another name, which ends in kWritingSuffix.
//
// Thread-safety: pure functions of values.
#ifndef TESSERA_COMMON_CHECKPOINT_INDEX_H_
#define TESSERA_COMMON_CHECKPOINT_INDEX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/flat_layout.h"
#include "common/safetensors_header.h"
#include "tessera/v1/checkpoint.pb.h"

namespace tessera {

inline constexpr int kCheckpointVersion = 1;
inline constexpr char kCheckpointIndexFile[] = "index.json";
inline constexpr char kWritingSuffix[] = ".writing";
inline constexpr int kParameterArray = -1;  // the parameters themselves; 0 and on: the optimizer's

// "step-600", and the step of such a name; nothing for any other name.
std::string CheckpointDirectory(int64_t step);
std::optional<int64_t> CheckpointStep(absl::string_view directory);
// "shard-00001-of-00002.safetensors" for shard 0 of 2.
std::string CheckpointShardFile(int shard, int shard_count);
// "param:h.0.w", "exp_avg:h.0.w".
std::string CheckpointTensor(const v1::CheckpointIndex& index, int array, absl::string_view fqn);

// What the optimizer's arrays are called, in their order: AdamW and Adam exp_avg and exp_avg_sq,
// SGD momentum_buffer; as torch.optim calls them.
std::vector<std::string> OptimizerArrayNames(absl::string_view optimizer, int arrays);

int64_t NumelOf(const v1::CheckpointParameter& parameter);

// What of the unit's parameters lies in the shard, in order. ShardRecord.parameter is an index.
std::vector<ShardRecord> CheckpointSlices(const v1::CheckpointUnit& unit, int shard);

// Calls `slice` for each tensor of the shard's file, in the file's order: unit by unit, first the
// parameters, then one of the optimizer's arrays after the other.
void ForEachSlice(const v1::CheckpointIndex& index, int shard,
                  absl::FunctionRef<void(int unit, int array, const ShardRecord& record)> slice);

// What a shard's file begins with, up to the first tensor's data. Each tensor's metadata says which
// of its parameter's elements it is: "param:h.0.w" -> "0:128 of [16,16]".
std::string CheckpointShardStart(const v1::CheckpointIndex& index, int shard);

std::string CheckpointIndexJson(const v1::CheckpointIndex& index);
// INVALID_ARGUMENT, beginning with `source_name`: not an index that CheckpointIndexJson could have
// written: another version, figures that do not fit each other, a name twice.
absl::StatusOr<v1::CheckpointIndex> ParseCheckpointIndex(absl::string_view json,
                                                         absl::string_view source_name);

}  // namespace tessera

#endif  // TESSERA_COMMON_CHECKPOINT_INDEX_H_
