// What the files that resolve a job file share. Not for others.
#ifndef TESSERA_COMMON_JOB_SPEC_CHECKS_H_
#define TESSERA_COMMON_JOB_SPEC_CHECKS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"

// Fills in a field that is absent.
#define TESSERA_DEFAULT(message, field, value)                    \
  do {                                                            \
    if (!(message)->has_##field()) (message)->set_##field(value); \
  } while (false)

namespace tessera {

inline constexpr int64_t kMaxCount = int64_t{1} << 40;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low,
                        int64_t high = kMaxCount);
absl::Status CheckAtLeastZero(absl::string_view field, double value);
// Values in `later` are known and come later.
absl::Status CheckOneOf(absl::string_view field, const std::string& value,
                        std::initializer_list<absl::string_view> known,
                        std::initializer_list<absl::string_view> later = {});

// job_spec_resolve_plan.cc. `builtin`: the model is a builtin one, which has a policy of its own.
absl::Status ResolveWrap(bool builtin, v1::WrapSpec* wrap);
absl::Status ResolveMixedPrecision(v1::MixedPrecisionSpec* spec);

// job_spec_resolve_mesh.cc. What a world size makes of a mesh is checked when it is known
// (coordinator/mesh.h).
absl::Status ResolveMesh(v1::MeshSpec* mesh);
absl::Status ResolveMemory(v1::MemorySpec* memory);
// For a builtin model batch and sequence stay absent: they follow from the job and its world size.
absl::Status ResolveActivations(bool builtin, v1::ActivationSpec* activations);

}  // namespace tessera

#endif  // TESSERA_COMMON_JOB_SPEC_CHECKS_H_
