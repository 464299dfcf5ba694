// What wrap.ignore leaves alone: it is in no unit, not sharded, not reduced, and counts for no
// policy. FSDP's ignored_modules and ignored_states.
//
//   TESSERA_ASSIGN_OR_RETURN(const Ignored ignored, FindIgnored(index, wrap));
#ifndef TESSERA_COORDINATOR_IGNORED_H_
#define TESSERA_COORDINATOR_IGNORED_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_spec.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

struct Ignored {
  // By index in index.modules() and index.parameters(). A module with all below it, under every
  // name that it has; a parameter's storage, whichever of its names is ignored.
  std::vector<bool> modules;
  std::vector<bool> parameters;
  int64_t parameter_count = 0;
  int64_t numel = 0;
};

// INVALID_ARGUMENT (wrap.ignore): an entry names no module and no parameter; or nothing is left.
absl::StatusOr<Ignored> FindIgnored(const ModelIndex& index, const v1::WrapSpec& wrap);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_IGNORED_H_
