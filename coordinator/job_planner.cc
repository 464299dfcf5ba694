#include "coordinator/job_planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/forecast.h"
#include "coordinator/layout.h"
#include "coordinator/plan_runnable.h"
#include "coordinator/planner.h"

namespace tessera {
namespace {

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

int64_t TotalBytes(const v1::Forecast& forecast) {
  int64_t bytes = 0;
  for (const v1::RankForecast& rank : forecast.ranks()) bytes += rank.mapped_bytes();
  for (const v1::HostForecast& host : forecast.hosts()) bytes += host.mapped_bytes();
  return bytes;
}

v1::Forecast ForecastOf(const v1::Plan& plan, const v1::Layout& layout,
                        const v1::JobSpec& resolved) {
  const int64_t micro_batches = resolved.micro_batches();
  return MakeForecast(plan, layout, layout.world_size(), micro_batches,
                      resolved.memory().accumulate_unsynchronized() ? 1 : micro_batches);
}

// What `auto` took and what the other choice would have cost.
absl::StatusOr<std::string> WhyResident(const JobPlan& planned, v1::JobSpec resolved) {
  resolved.mutable_memory()->set_unshard("slots");
  const int world_size = planned.layout.world_size();
  TESSERA_ASSIGN_OR_RETURN(const v1::Layout slots, MakeLayout(planned.plan, resolved, world_size));
  const v1::Forecast forecast = ForecastOf(planned.plan, slots, resolved);
  return absl::StrCat(
      "memory.unshard auto took resident, since all ranks share one host: nothing "
      "is moved to unshard, and the host maps ",
      TotalBytes(planned.forecast), " bytes; slots would map ", TotalBytes(forecast), ".");
}

}  // namespace

absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& resolved, int world_size) {
  TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
  JobPlan planned;
  TESSERA_ASSIGN_OR_RETURN(planned.plan, MakePlan(model, resolved));
  TESSERA_ASSIGN_OR_RETURN(planned.layout, MakeLayout(planned.plan, resolved, world_size));
  planned.forecast = ForecastOf(planned.plan, planned.layout, resolved);
  if (resolved.memory().unshard() == "auto" && planned.layout.device() == v1::CUDA) {
    planned.layout.add_notes("memory.unshard auto took slots, since GPUs share no memory.");
  } else if (resolved.memory().unshard() == "auto") {
    TESSERA_ASSIGN_OR_RETURN(*planned.layout.add_notes(), WhyResident(planned, resolved));
  }
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
  // What an attached program makes of its model is its own affair.
  const bool gpt = resolved.workload() == "gpt";
  if (!gpt && resolved.workload() != "attached") {
    return unavailable("workload", resolved.workload(), "gpt or attached");
  }
  if (gpt && resolved.model().builtin() != "gpt") {
    return InvalidField("model",
                        "the workload gpt trains the builtin model gpt; drop spec and file, or "
                        "give the workload attached and a program that trains this model");
  }
  if (gpt && resolved.device() == "cuda") {
    return InvalidField("device",
                        "is cuda, but the workload gpt computes on the CPU; give auto or cpu, or "
                        "attach a program that computes on GPUs");
  }
  // What will be built is checked when it is sealed.
  if (!resolved.model().built()) TESSERA_RETURN_IF_ERROR(CheckPlanRunnable(resolved, plan));
  if (resolved.mesh().strategy() != "full_shard") {
    return unavailable("mesh.strategy", resolved.mesh().strategy(), "full_shard");
  }
  if (resolved.mesh().replicas() != 1) {
    return InvalidField("mesh.replicas", "replicas are not available yet; give 1");
  }
  return CheckCheckpoint(resolved.checkpoint());
}

}  // namespace tessera
