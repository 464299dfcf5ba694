// The flags of `tessera plan` that say what is planned and what is other than in the job file.
//
//   auto flags = std::make_shared<PlanFlags>();
//   AddPlanFlags(*command, flags);
//   ... after the parse ...
//   TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec spec, LoadPlanSpec(*flags));
//
// Each flag but the sources and --world_size is one field of the job file. A list is given as A,B;
// an empty one (--ignore=) is [""], the empty set. A switch may stand alone, which is true. --wrap
// also takes away what the file says for another policy: its wrap_classes and any_of.
//
// Every error is INVALID_ARGUMENT, one line that names the flag, the field or the file.
#ifndef TESSERA_CLIENT_PLAN_FLAGS_H_
#define TESSERA_CLIENT_PLAN_FLAGS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/job.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tessera {

struct PlanFlags {
  // Exactly one source.
  std::string model;
  std::string hf_config;
  std::string safetensors;
  std::string job;
  std::optional<int64_t> world_size;
  // (flag, value) of each flag that is a field, in the order of the table in plan_flags.cc.
  std::vector<std::pair<std::string, std::string>> fields;
};

// --model, --hf_config, --safetensors, --job, --world_size and the flags that are fields. `flags`
// is filled by the app's parse.
void AddPlanFlags(CLI::App& command, const std::shared_ptr<PlanFlags>& flags);

// The source with the flags applied; nothing is filled in.
absl::StatusOr<v1::JobSpec> LoadPlanSpec(const PlanFlags& flags);

// What a file of `--compare` holds, by its keys: what `tessera plan --output=json` printed (plan,
// layout), a ModelSpec (root), or else a job file.
enum class PlanFileKind { kPlan, kModel, kJob };
PlanFileKind KindOfPlanFile(absl::string_view json);

// Whether a flag is given that would change a plan.
bool ChangesPlan(const PlanFlags& flags);

// Sets in `spec` what the flags say.
absl::Status ApplyPlanFlags(const PlanFlags& flags, v1::JobSpec* spec);

// At which world size a resolved job is planned: --world_size, which need not be one that the job
// would run at, else mesh.max_workers.
absl::StatusOr<int> PlannedWorldSize(const PlanFlags& flags, const v1::JobSpec& resolved);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PLAN_FLAGS_H_
