// State dicts: parameters and optimizer state by FQN, whole (full) or by this rank's slices
// (sharded), and back. FSDP's FULL_STATE_DICT and SHARDED_STATE_DICT with their optimizer
// counterparts; a tied parameter is one entry, whichever of its names it is asked for by.
//
//   const auto write = [&](absl::Span<const ParameterState> unit) { return Write(unit); };
//   TESSERA_RETURN_IF_ERROR(VisitFullState(session, {}, write));  // on rank 0, a unit at a time
//   TESSERA_RETURN_IF_ERROR(LoadFullState(session, {}, CountersOf(session), find));
//
// Every rank calls each of them but ShardedState and CountersOf, outside a step and with no unit in
// use. Where only some ranks come, those that came get an error that names one that is elsewhere
// (FAILED_PRECONDITION) or those that are missing (DEADLINE_EXCEEDED), and never hang.
//
// Values are in the unit's original dtype, the optimizer's arrays in float32 (float64
// for parameters in float64), both row-major and
// little-endian, without padding. Frozen parameters have no arrays. Works at one rank as at many.
//
// Thread-safety: as the session.
#ifndef TESSERA_WORKER_STATE_DICT_H_
#define TESSERA_WORKER_STATE_DICT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/session.h"

namespace tessera {

// What is the same on every rank.
struct StateCounters {
  int64_t step = 0;     // committed
  int64_t updates = 0;  // of the optimizer: steps that were not skipped
  // mixed_precision.loss_scale, and good steps since it changed. 0: leave it as it is.
  double loss_scale = 0;
  int64_t loss_scale_age = 0;
};
StateCounters CountersOf(Session& session);

// Names of the optimizer's arrays, as torch.optim calls them: adamw and adam exp_avg, exp_avg_sq;
// sgd with momentum momentum_buffer; else none.
std::vector<std::string> OptimizerArrayNames(const v1::OptimizerSpec& optimizer);

// One of the optimizer's arrays of a parameter, as long as it.
struct StateArray {
  std::string name;
  DType dtype = v1::FLOAT32;
  std::vector<char> bytes;
};

struct ParameterState {
  SummonedParameter value;
  std::vector<std::string> tied_fqns;
  std::vector<StateArray> optimizer;  // in the order of OptimizerArrayNames; frozen: empty
};

struct StateOptions {
  bool optimizer = true;  // with the optimizer's arrays
  // VisitFullState: the visitor is called on rank 0 alone; others only take part, and keep nothing.
  bool rank0_only = true;
};

// Calls `visit` for one unit after another, with its parameters in the plan's order; one unit is
// whole at a time. An error of `visit` ends the session, on the other ranks as soon as this one
// aborts. UNIMPLEMENTED: optimizer state on GPUs.
absl::Status VisitFullState(
    Session& session, const StateOptions& options,
    absl::FunctionRef<absl::Status(absl::Span<const ParameterState> unit)> visit);

// Asks `find` on every rank for each parameter of the plan, by its FQN and, where that is
// NOT_FOUND, by the tied ones, and keeps this rank's slices; a unit at a time. `find` gives the
// same on every rank; its tied_fqns are not looked at. Sets the counters: next is step + 1.
// INVALID_ARGUMENT: another shape, dtype or arrays than the plan's (names the FQN); or values other
// than another rank's. Errors of `find` as they are. After an error the session is over, with its
// units in part loaded. UNIMPLEMENTED: on GPUs.
absl::Status LoadFullState(
    Session& session, const StateOptions& options, const StateCounters& counters,
    absl::FunctionRef<absl::StatusOr<ParameterState>(const std::string& fqn)> find);

// A run of a parameter's elements, row-major. The bytes are somebody else's.
struct ParameterShard {
  struct Array {
    std::string name;
    DType dtype = v1::FLOAT32;
    absl::string_view bytes;
  };

  std::string fqn;
  std::vector<std::string> tied_fqns;
  DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t begin = 0;           // first element
  int64_t numel = 0;
  absl::string_view bytes;
  std::vector<Array> optimizer;  // as ParameterState's
};

// This rank's slices, in the plan's order; may be none. No communication and no copy: the bytes are
// the shards', valid until the next EndStep, WriteBack or load. Every replica has the same slices.
absl::StatusOr<std::vector<ParameterShard>> ShardedState(Session& session,
                                                         const StateOptions& options);

// Fills this rank's shards from `shards`, which may be cut otherwise than this job's (saved at
// another world size or wrapping), in any order, and more than this rank needs. Replicas give the
// same. All ranks learn whether all can before any writes: after INVALID_ARGUMENT (an element that
// this rank needs is in none, or a shard has another shape, dtype or length than the plan's; names
// the FQN) nothing has changed, but the session is over. UNIMPLEMENTED: on GPUs.
absl::Status LoadShardedState(Session& session, const StateOptions& options,
                              const StateCounters& counters,
                              absl::Span<const ParameterShard> shards);

}  // namespace tessera

#endif  // TESSERA_WORKER_STATE_DICT_H_
