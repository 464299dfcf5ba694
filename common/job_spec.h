// Reads a job file, fills in its defaults and checks it.
//
//   TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, ParseJobSpec(text, "job.json"));
//   TESSERA_RETURN_IF_ERROR(SetField(&spec, "optimizer.betas", "[0.9, 0.99]"));
//   TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(std::move(spec)));
//   TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
//
// Every error is INVALID_ARGUMENT on one line; Field(status) is the dotted path, e.g.
// "mesh.min_workers".
//
// Thread-safety: values; no shared state.
#ifndef TESSERA_COMMON_JOB_SPEC_H_
#define TESSERA_COMMON_JOB_SPEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// More than any mesh has; keeps sums of bytes over ranks within int64.
inline constexpr int64_t kMaxWorkers = 65'536;

// `json` as it stands, with nothing filled in. INVALID_ARGUMENT: not JSON, an unknown key or a
// value of the wrong type; the message begins with `source_name`.
absl::StatusOr<v1::JobSpec> ParseJobSpec(absl::string_view json, absl::string_view source_name);

// Sets one field, e.g. "model.layers" to "2", "timeouts.collective" to "5s", "wrap" to
// "{\"policy\": \"none\"}". `value` is JSON; where the field takes text it may be bare. null clears
// the field (but is text where the field takes text). What the field held before is gone.
// INVALID_ARGUMENT: no such field, or the value is not of its type; `spec` is then unchanged.
absl::Status SetField(v1::JobSpec* spec, absl::string_view dotted_path, absl::string_view value);

// `spec` with every default of job.proto filled in and dtypes in canonical form. Idempotent.
// INVALID_ARGUMENT: a field is out of range, unknown or contradicts another; the message says which
// and what to do. model.file is left as it is: whoever can read it replaces it by model.spec.
absl::StatusOr<v1::JobSpec> ResolveJobSpec(v1::JobSpec spec);

// The model of a resolved job: the builtin one, or model.spec. INVALID_ARGUMENT: model.file is set;
// or the model is not valid (ValidateModelSpec).
absl::StatusOr<v1::ModelSpec> ModelOf(const v1::JobSpec& resolved);

}  // namespace tessera

#endif  // TESSERA_COMMON_JOB_SPEC_H_
