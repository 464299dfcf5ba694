// ShardStore: what a rank owns of the model, in its memory file: master shards, reduced gradient
// shards, optimizer state, and what it takes to finish a committed step after this process is gone.
//
// A step is committed if and only if every rank's vote for it lies in its file, all of one attempt.
// Before that no shard has changed. Votes and records are kept by the step's parity, so that the
// last two steps can be read: ranks are never further apart (worker/step_recovery.h). After the
// commit each rank applies the optimizer unit by unit:
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
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/parameter_groups.h"
#include "tessera/v1/plan.pb.h"
#include "worker/fault_points.h"
#include "worker/optimizer.h"
#include "worker/shard_span.h"

namespace tessera {

// A rank's vote that it has reduced every unit of a step. Plain bytes: it is exchanged as it is.
struct Vote {
  int64_t step = 0;
  int64_t attempt = 0;
  double norm_term = 0;  // of this rank's gradient shards (worker/norm.h)
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
  int64_t update = 0;  // the optimizer's own count, from 1: of this step, if it is not skipped
  double learning_rate = 0;
  double clip_coefficient = 1;
  double loss_scale = 1;       // the gradients are this times too large (worker/loss_scale.h)
  int64_t loss_scale_age = 0;  // good steps since the scale last changed, without this one
  int64_t data_position = 0;   // sequences consumed before the step
  int64_t skip = 0;            // 1: a gradient was not finite; the shards stay as they are

  int64_t updates() const { return update - skip; }  // once the step is done
};

// With what the shards were filled: where training stood before the first step of this file.
struct FilledWith {
  int64_t step = 0;
  int64_t updates = 0;
  int64_t data_position = 0;
  double loss_scale = 1;
  int64_t loss_scale_steps = 0;
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
    ParameterGroups groups;
    double norm_type = 2;  // of MeasureGradients: 1 or more; infinity: the largest magnitude
    // RESIDENT: by unit, this rank's slice of the unit's place in the unsharded file, in
    // param_dtype. The slice is the master itself where that is original_dtype; elsewhere the
    // optimizer writes it beside the master, in the same pass. Empty: SLOTS.
    std::vector<char*> slices;
    FaultPoints* faults = nullptr;
  };

  // INVALID_ARGUMENT: the layout reaches beyond the file.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Create(Options options);

  // shard_numel elements each, in original_dtype and gradient_dtype; the same memory for the life
  // of the store.
  ShardSpan Parameters(int unit) const;
  ShardSpan Gradients(int unit) const;
  // One of the arrays that the optimizer keeps (rank_file.optimizer_arrays): float32, or float64
  // where the parameters are that.
  ShardSpan State(int unit, int array) const;

  // Writes the slices that are copies, from the masters: once the masters are filled.
  void WriteComputeSlices();
  void WriteComputeSlice(int unit);

  // What the gradient shards add to their norm, in double, and whether all of it is finite.
  Vote MeasureGradients() const;

  // Shards and state hold these values: votes and records of before are void. Before it, nothing:
  // whoever takes over a file that is not filled fills it again.
  void StartFrom(const FilledWith& start);
  std::optional<FilledWith> filled() const;

  // Writes this rank's vote and, before it, what the step will need if the vote passes. Until both
  // are whole the file has neither.
  void CastVote(const Vote& vote, const StepRecord& record);
  // Of the newest step voted for; step 0: none.
  Vote LastVote() const;
  StepRecord LastRecord() const;
  // Of the last two steps alone; step 0: none is kept.
  Vote VoteOf(int64_t step) const;
  StepRecord RecordOf(int64_t step) const;

  // What all votes for the step together decide: set once they are known, and again, with the same
  // result, from the votes by whoever takes over the file.
  void Decide(int64_t step, bool skip, double clip_coefficient);
  // Applies the step to every unit that does not have it yet. `timed` is told each unit's
  // microseconds.
  void FinishStep(int64_t step, absl::FunctionRef<void(int unit, double us)> timed);
  // The last step applied to the unit, or with which it was filled; 0: none.
  int64_t StepTag(int unit) const;

 private:
  struct Header;
  // A run of a shard's elements that are updated alike.
  struct Segment {
    int64_t begin = 0;
    int64_t numel = 0;
    double lr_scale = 1;
    double weight_decay = 0;
  };

  explicit ShardStore(Options options);
  Header& header() const;
  int64_t& Tag(int unit) const;
  ShardSpan At(int64_t offset_bytes, int unit, DType dtype) const;
  bool MasterIsSlice(int unit) const;
  // Where the copy of the unit's master goes that is in param_dtype; null: nowhere.
  char* ComputeSlice(int unit) const;
  // The parameters of the unit, then its optimizer's arrays: what an update changes.
  std::vector<ShardSpan> Updated(int unit) const;
  int state_arrays() const { return options_.layout.rank_file().optimizer_arrays(); }
  void ComputeSegments();
  void SaveUndo(int unit);
  void RestoreUndo(int64_t step);
  // Of the step's parity.
  Vote& VoteAt(int64_t step) const;
  StepRecord& RecordAt(int64_t step) const;
  void ApplyUnit(int unit, const StepRecord& record);

  const Options options_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  std::vector<std::vector<Segment>>
      segments_;  // by unit; padding and frozen parameters are in none
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SHARD_STORE_H_
