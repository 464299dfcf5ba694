// Reads checkpoints by ranges of parameters, wherever they were cut.
//
//   TESSERA_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open("out/step-600"));
//   const CheckpointPlace* place = reader.Find("wte.weight");
//   TESSERA_RETURN_IF_ERROR(reader.Read(*place, kParameterArray, /*begin=*/0, /*end=*/64, bytes));
//
// Thread-safety: none.
#ifndef TESSERA_COMMON_CHECKPOINT_READER_H_
#define TESSERA_COMMON_CHECKPOINT_READER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint_index.h"
#include "common/safetensors_files.h"
#include "tessera/v1/checkpoint.pb.h"

namespace tessera {

// Where a parameter lies: indices into CheckpointIndex.
struct CheckpointPlace {
  int unit = 0;
  int parameter = 0;
};

class CheckpointReader {
 public:
  // INVALID_ARGUMENT, beginning with the directory: there is no whole checkpoint: no index, a
  // damaged one, or a file that is missing or has another length than the index says.
  static absl::StatusOr<CheckpointReader> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const v1::CheckpointIndex& index() const { return index_; }
  const v1::CheckpointParameter& parameter(const CheckpointPlace& place) const {
    return index_.units(place.unit).parameters(place.parameter);
  }
  // By the parameter's name or a tied one; null: there is none.
  const CheckpointPlace* Find(absl::string_view fqn) const;
  // Of the array's elements. `array`: kParameterArray, or one of the optimizer's.
  DType DTypeOf(const CheckpointPlace& place, int array) const;

  // Elements [begin, end) of the parameter, or of an array that the optimizer keeps beside it, in
  // DTypeOf, from whichever files have them. `out` has place for them; nothing else is held.
  // INVALID_ARGUMENT: a file does not have what the index says. INTERNAL: it cannot be read.
  absl::Status Read(const CheckpointPlace& place, int array, int64_t begin, int64_t end, char* out);

 private:
  absl::StatusOr<const SafetensorsReader*> Shard(int shard);

  std::string directory_;
  v1::CheckpointIndex index_;
  std::map<std::string, CheckpointPlace, std::less<>> places_;
  std::vector<std::optional<SafetensorsReader>> shards_;  // as they are needed
};

// A whole checkpoint of a directory, and those that are not, each with why, one sentence.
struct FoundCheckpoints {
  // Step and sequence, the newest (saved last) first.
  struct Whole {
    std::string path;
    int64_t step = 0;
    int64_t sequence = 0;
  };
  std::vector<Whole> whole;
  std::vector<std::string> torn;
};

// What is in DIR/step-N. A directory that is not there has none. INVALID_ARGUMENT: it cannot be
// listed.
absl::StatusOr<FoundCheckpoints> FindCheckpoints(const std::string& directory);

// Of every parameter and optimizer array, SHA-256 over runs of kHashBlockElements elements of the
// whole parameter: equal where the values are, however they were cut. One run in memory at a time.
inline constexpr int64_t kHashBlockElements = int64_t{1} << 20;
absl::StatusOr<v1::CheckpointHashes> HashCheckpoint(CheckpointReader& reader);

}  // namespace tessera

#endif  // TESSERA_COMMON_CHECKPOINT_READER_H_
