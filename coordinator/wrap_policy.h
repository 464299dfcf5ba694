// Decides which modules are units.
//
//   "class"  modules whose class_name or one of whose base_classes is in wrap_classes (FSDP's
//            ModuleWrapPolicy);
//   "none"   none.
// The root is a unit always. An alias (`same_as`) is never one: its target is.
#ifndef TESSERA_COORDINATOR_WRAP_POLICY_H_
#define TESSERA_COORDINATOR_WRAP_POLICY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/model_spec.h"
#include "tessera/v1/job.pb.h"

namespace tessera {

// For each of index.modules() whether it is a unit. INVALID_ARGUMENT: wrap.policy is unknown or not
// there yet; class without classes; or classes that no module has (accelerate #2872: all of them
// are named, with those that there are).
absl::StatusOr<std::vector<bool>> ChooseUnits(const ModelIndex& index, const v1::WrapSpec& wrap);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_WRAP_POLICY_H_
