// ShardStore: what a rank owns of the model, in its memory file: master shards, reduced gradient
// shards, optimizer state, and what it takes to finish a committed step after this process is gone.
//
// A step is committed if and only if every rank's vote for it lies in its file. Before that no
// shard has changed. After it each rank applies the optimizer unit by unit:
//
//   copy the unit's parameters and state to the undo buffer; set the undo flag; update; set the
//   unit's step tag; clear the flag.
//
// FinishStep does this, and does it again from wherever an earlier process stopped: a unit whose
// undo flag is set is restored first, a unit whose tag says that the step was applied is left
// alone. All it needs (step, learning rate, gradients) is in the file.
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_SHARD_STORE_H_
#define TESSERA_WORKER_SHARD_STORE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tessera/v1/plan.pb.h"
#include "worker/fault_points.h"
#include "worker/optimizer.h"
#include "worker/shard_span.h"

namespace tessera {

// A rank's vote that it has reduced every unit of a step. Plain bytes: it is exchanged as it is.
struct Vote {
  int64_t step = 0;
  int64_t attempt = 0;
  double squared_norm = 0;  // of this rank's gradient shards
  double loss_sum = 0;
  int64_t loss_count = 0;
  uint64_t order_hash = 0;  // of the units unsharded in the step, in order
  int64_t non_finite = 0;   // 1: a gradient shard has an infinity or NaN
  int64_t drain = 0;        // 1: this rank has heard that the job is to stop after the step
};

// What the optimizer needs to know of a committed step.
struct StepRecord {
  int64_t step = 0;
  int64_t attempt = 0;
  int64_t update =
      0;  // the optimizer's own count, from 1: steps that were not skipped, this one included
  double learning_rate = 0;
  double clip_coefficient = 1;
  double loss_scale = 1;
  int64_t data_position = 0;  // sequences consumed before the step
  int64_t skip = 0;           // 1: a gradient was not finite; the shards stay as they are
};

// By unit: where this rank's slice lies in a resident job's unsharded file; null for a unit without
// elements. Empty for SLOTS. `layout` may be without its units.
std::vector<char*> ResidentSlices(const v1::Layout& layout, const std::vector<v1::Unit>& units,
                                  const std::vector<v1::UnitLayout>& layouts, int shard_index,
                                  char* unsharded);

class ShardStore {
 public:
  struct Options {
    // The rank's memory file, mapped, all zero or as an earlier process left it. Outlives the
    // store.
    absl::Span<char> file;
    v1::Layout layout;  // rank_file
    std::vector<v1::Unit> units;
    std::vector<v1::UnitLayout> layouts;
    int shard_index = 0;
    OptimizerOptions optimizer;
    // RESIDENT: by unit, this rank's slice of the unit's place in the unsharded file, in
    // param_dtype. The slice is the master itself where param_dtype is float32; elsewhere the
    // optimizer writes it beside the master, in the same pass. Empty: SLOTS.
    std::vector<char*> slices;
    FaultPoints* faults = nullptr;
  };

  // INVALID_ARGUMENT: the layout reaches beyond the file.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Create(Options options);

  // shard_numel elements each; the same memory for the life of the store.
  ShardSpan Parameters(int unit) const;
  ShardSpan Gradients(int unit) const;
  // One of the arrays that the optimizer keeps (rank_file.optimizer_arrays).
  absl::Span<float> State(int unit, int array) const;

  // Writes the slices that are copies, from the masters: once the masters are filled.
  void WriteComputeSlices();

  // Sum over the gradient shards in double, and whether all of it is finite.
  Vote MeasureGradients() const;

  // Writes this rank's vote and, before it, what the step will need if the vote passes.
  void CastVote(const Vote& vote, const StepRecord& record);
  // The last vote cast; step 0: none.
  Vote LastVote() const;
  StepRecord LastRecord() const;

  // What all votes together decide: set once they are known, and again from the votes by whoever
  // takes over the file.
  void Decide(bool skip, double clip_coefficient);
  // Applies the step of LastRecord to every unit that does not have it yet. `timed` is told each
  // unit's microseconds.
  void FinishStep(absl::FunctionRef<void(int unit, double us)> timed);
  // The last step applied to the unit; 0: none.
  int64_t StepTag(int unit) const;

 private:
  struct Header;
  // A run of a shard's elements that are updated alike.
  struct Segment {
    int64_t begin = 0;
    int64_t numel = 0;
    bool decay = false;
  };

  explicit ShardStore(Options options);
  Header& header() const;
  int64_t& Tag(int unit) const;
  absl::Span<float> At(int64_t offset_bytes, int unit) const;
  bool MasterIsSlice(int unit) const;
  // Where the low-precision copy of the unit's master goes; null: nowhere.
  uint16_t* ComputeSlice(int unit) const;
  float* Undo() const;
  int state_arrays() const { return options_.layout.rank_file().optimizer_arrays(); }
  void ComputeSegments();
  void SaveUndo(int unit);
  void RestoreUndo();
  void ApplyUnit(int unit, const StepRecord& record);

  const Options options_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  std::vector<std::vector<Segment>>
      segments_;  // by unit; padding and frozen parameters are in none
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SHARD_STORE_H_
