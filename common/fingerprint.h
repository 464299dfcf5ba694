// Names of plans and layouts that change exactly when they do: SHA-256 in lower-case hex over a
// text of our own, so that nothing depends on how protobuf serialises. A line is a key, a space and
// a value, and ends with '\n'; names stand last on a line and hold no line break (ModelSpec refuses
// them). Integers are decimal, dtypes canonical names ("float32"), enums their proto names
// ("FULL_SHARD"), lists are joined by ',' and '-' stands for an absent or empty one.
//
// Plan: once
//   tessera-plan 1
// then for every unit, in order,
//   unit FQN | class NAME | numel N | original_dtype D | param_dtype D | reduce_dtype D |
//   enclosing_unit I
// then, each only where it is not what stands in brackets (or not set at all),
//   gradient_dtype D [original_dtype] | unsynced_gradient_dtype D [param_dtype] |
//   input_dtype D or - [the root: param_dtype if that is not original_dtype; others: -] |
//   strategy S | param_align_bytes N | shard_align_bytes N | reshard_group N [no override]
// for each of its buffers
//   buffer FQN | shape A,B | original_dtype D | buffer_dtype D
// and for each of its parameters
//   parameter FQN | shape A,B | requires_grad 0 or 1 | tied FQN (for each tie)
// Not in it: initial values, notes, the model's name, what is in no unit.
//
// Layout: once
//   tessera-layout 1 | plan FINGERPRINT | world_size N | sharding_strategy E | shard_count N |
//   replica_count N | unshard_mode E | prefetch N | gradient_stride_bytes N
// then for each slot
//   unsharded_slot OFFSET,BYTES,LEVEL or gradient_slot OFFSET,BYTES,LEVEL; a resident unit's has
//   ,UNIT after it
// then, where the device is CUDA, once
//   device CUDA | staging_bytes N
// then, where they are not 0, local_world_size N and reshard_group N, and for each slot
//   reshard_slot OFFSET,BYTES,-,UNIT or accumulation_slot OFFSET,BYTES,-,UNIT
// then once
//   rank_file RECORD,UNDO_OFFSET,UNDO,TOTAL
// then for each unit
//   unit FQN | level N | padded_numel N | shard_numel N | regions PARAMETER,GRADIENT,OPTIMIZER |
//   sharding_strategy E and reshard_group N where the unit has its own
// and for each of its parameters
//   parameter OFFSET FQN
// Not in it: notes.
//
// ('|' above stands for the end of a line.) Thread-safety: pure functions.
#ifndef TESSERA_COMMON_FINGERPRINT_H_
#define TESSERA_COMMON_FINGERPRINT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/repeated_field.h"
#include "tessera/v1/plan.pb.h"

namespace tessera {

// SHA-256 of `text`, 64 lower-case hex digits.
std::string Sha256Hex(absl::string_view text);

// The texts above, for tests and for people who compare two plans with diff.
std::string PlanText(const google::protobuf::RepeatedPtrField<v1::Unit>& units);
std::string LayoutText(const v1::Layout& header,
                       const google::protobuf::RepeatedPtrField<v1::UnitLayout>& units);

// What Plan.plan_fingerprint must be.
std::string PlanFingerprint(const google::protobuf::RepeatedPtrField<v1::Unit>& units);

// What Layout.layout_fingerprint must be, from a layout (its own `units` and `layout_fingerprint`
// are not looked at) and the list of its units: a worker gets the two apart.
std::string LayoutFingerprint(const v1::Layout& header,
                              const google::protobuf::RepeatedPtrField<v1::UnitLayout>& units);

}  // namespace tessera

#endif  // TESSERA_COMMON_FINGERPRINT_H_
