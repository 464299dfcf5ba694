#include "coordinator/job_planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/forecast.h"
#include "coordinator/layout.h"
#include "coordinator/planner.h"

namespace tessera {
namespace {

absl::Status CheckDTypes(const v1::Plan& plan) {
  for (const v1::Unit& unit : plan.units()) {
    // By field, since it is the job file that has to change.
    if (unit.original_dtype() != v1::FLOAT32) {
      return InvalidField(unit.parameters().empty() ? "model" : unit.parameters(0).fqn(),
                          absl::StrCat("is ", DTypeName(unit.original_dtype()),
                                       "; only float32 models can be trained yet"));
    }
    if (unit.param_dtype() != v1::FLOAT32) {
      return InvalidField(
          "mixed_precision.param_dtype",
          absl::StrCat(DTypeName(unit.param_dtype()), " is not available yet; use float32"));
    }
    if (unit.reduce_dtype() != v1::FLOAT32) {
      return InvalidField(
          "mixed_precision.reduce_dtype",
          absl::StrCat(DTypeName(unit.reduce_dtype()), " is not available yet; use float32"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::CheckpointSpec& checkpoint) {
  if (checkpoint.every() > 0) {
    return InvalidField("checkpoint.every", "checkpoints are not available yet; give 0");
  }
  if (checkpoint.resume() != "none") {
    return InvalidField("checkpoint.resume", absl::StrCat("\"", checkpoint.resume(),
                                                          "\" is not available yet; give none"));
  }
  if (!checkpoint.import().empty()) {
    return InvalidField("checkpoint.import", "importing values is not available yet; give \"\"");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& resolved, int world_size) {
  TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
  JobPlan planned;
  TESSERA_ASSIGN_OR_RETURN(planned.plan,
                           MakePlan(model, resolved.wrap(), resolved.mixed_precision()));
  TESSERA_ASSIGN_OR_RETURN(planned.layout, MakeLayout(planned.plan, resolved, world_size));
  planned.forecast =
      MakeForecast(planned.plan, planned.layout, world_size, resolved.micro_batches());
  return planned;
}

int ChooseWorldSize(const v1::JobSpec& resolved, int available) {
  const int64_t largest = std::min<int64_t>(available, resolved.mesh().max_workers());
  for (int64_t size = largest; size >= std::max<int64_t>(1, resolved.mesh().min_workers());
       --size) {
    if (resolved.global_batch() % (size * resolved.micro_batches()) == 0)
      return static_cast<int>(size);
  }
  return 0;
}

absl::Status CheckRunnable(const v1::JobSpec& resolved, const v1::Plan& plan) {
  const auto unavailable = [](absl::string_view field, const std::string& value,
                              absl::string_view advice) {
    return InvalidField(field, absl::StrCat("\"", value, "\" is not available yet; use ", advice));
  };
  if (resolved.workload() != "gpt") return unavailable("workload", resolved.workload(), "gpt");
  if (resolved.model().builtin() != "gpt") {
    return InvalidField("model",
                        "the workload gpt trains the builtin model gpt; drop spec and file, or "
                        "only plan this model");
  }
  TESSERA_RETURN_IF_ERROR(CheckDTypes(plan));
  if (resolved.optimizer().name() != "adamw")
    return unavailable("optimizer.name", resolved.optimizer().name(), "adamw");
  if (resolved.optimizer().clip_norm() > 0) {
    return InvalidField("optimizer.clip_norm", "clipping is not available yet; give 0");
  }
  if (resolved.mesh().strategy() != "full_shard") {
    return unavailable("mesh.strategy", resolved.mesh().strategy(), "full_shard");
  }
  if (resolved.mesh().replicas() != 1) {
    return InvalidField("mesh.replicas", "replicas are not available yet; give 1");
  }
  if (resolved.memory().unshard() == "resident") {
    return unavailable("memory.unshard", resolved.memory().unshard(), "auto or slots");
  }
  return CheckCheckpoint(resolved.checkpoint());
}

}  // namespace tessera
