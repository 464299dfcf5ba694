#include "coordinator/job_planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/fit.h"
#include "coordinator/forecast.h"
#include "coordinator/gpt_slots.h"
#include "coordinator/layout.h"
#include "coordinator/plan_runnable.h"
#include "coordinator/planner.h"
#include "coordinator/runnable_hosts.h"
#include "coordinator/runnable_mesh.h"

namespace tessera {
namespace {

absl::Status CheckGptDtypes(const v1::Plan& plan) {
  for (const v1::Unit& unit : plan.units()) {
    if (unit.param_dtype() != v1::FLOAT64) continue;
    return InvalidField("mixed_precision.param_dtype",
                        "is float64, and the workload gpt computes in float32, which would lose "
                        "what float64 is for; give float32, bfloat16 or float16");
  }
  return absl::OkStatus();
}

int64_t TotalBytes(const v1::Forecast& forecast) {
  int64_t bytes = 0;
  for (const v1::RankForecast& rank : forecast.ranks()) bytes += rank.mapped_bytes();
  for (const v1::HostForecast& host : forecast.hosts()) bytes += host.mapped_bytes();
  return bytes;
}

// What `auto` took and what the other choice would have cost.
absl::StatusOr<std::string> WhyResident(const JobPlan& planned, const FittedLayout& fitted,
                                        v1::JobSpec resolved) {
  resolved.mutable_memory()->set_unshard("slots");
  const int world_size = planned.layout.world_size();
  TESSERA_ASSIGN_OR_RETURN(const v1::Layout slots, MakeLayout(planned.plan, resolved, world_size));
  const v1::Forecast forecast = MakeForecast(planned.plan, slots, fitted.options);
  if (planned.forecast.hosts_size() > 1) {
    return absl::StrCat(
        "memory.unshard auto took resident, since every shard group lies within one host: nothing "
        "is moved to unshard, and all hosts map ",
        TotalBytes(planned.forecast), " bytes; slots would map ", TotalBytes(forecast), ".");
  }
  return absl::StrCat(
      "memory.unshard auto took resident, since all ranks share one host: nothing "
      "is moved to unshard, and the host maps ",
      TotalBytes(planned.forecast), " bytes; slots would map ", TotalBytes(forecast), ".");
}

absl::StatusOr<std::string> WhyUnshard(const JobPlan& planned, const FittedLayout& fitted,
                                       const v1::JobSpec& resolved) {
  if (planned.layout.unshard_mode() == v1::RESIDENT) return WhyResident(planned, fitted, resolved);
  if (planned.layout.device() == v1::CUDA) {
    return "memory.unshard auto took slots, since GPUs share no memory.";
  }
  if (fitted.resident_needed_bytes > 0) {
    return absl::StrCat("memory.unshard auto took slots, since a host would need ",
                        fitted.resident_needed_bytes, " bytes with resident, more than ",
                        "memory.device_memory ", resolved.memory().device_memory(),
                        "; with slots it needs ", fitted.needed_bytes, ".");
  }
  return "memory.unshard auto took slots, since shard groups reach over several hosts.";
}

void AddFit(const v1::ModelSpec& model, const v1::JobSpec& resolved, const FittedLayout& fitted,
            JobPlan* planned) {
  v1::Forecast& forecast = planned->forecast;
  *forecast.mutable_fit() = MakeFit(model, planned->plan, resolved, fitted);
  forecast.set_fits(forecast.fit().needed_bytes() <= forecast.fit().device_memory_bytes());
  for (std::string& note : FitNotes(forecast)) planned->layout.add_notes(std::move(note));
}

}  // namespace

absl::StatusOr<JobPlan> PlanJob(const v1::JobSpec& resolved, int world_size) {
  TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
  JobPlan planned;
  TESSERA_ASSIGN_OR_RETURN(planned.plan, MakePlan(model, resolved));
  TESSERA_ASSIGN_OR_RETURN(const FittedLayout fitted,
                           LayOutToFit(model, planned.plan, resolved, world_size));
  planned.layout = fitted.layout;
  planned.forecast = MakeForecast(planned.plan, planned.layout, fitted.options);
  if (resolved.memory().unshard() == "auto") {
    TESSERA_ASSIGN_OR_RETURN(*planned.layout.add_notes(), WhyUnshard(planned, fitted, resolved));
  }
  if (!resolved.memory().device_memory().empty()) AddFit(model, resolved, fitted, &planned);
  return planned;
}

int ChooseWorldSize(const v1::JobSpec& resolved, int available) {
  const int multiple = std::max(1, RanksOfHost(resolved));
  const int64_t largest = std::min<int64_t>(available, resolved.mesh().max_workers());
  for (int64_t size = largest; size >= std::max<int64_t>(1, resolved.mesh().min_workers());
       --size) {
    if (size % multiple == 0 && resolved.global_batch() % (size * resolved.micro_batches()) == 0)
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
  const bool replay = resolved.workload() == "replay";
  if (!gpt && !replay && resolved.workload() != "attached") {
    return unavailable("workload", resolved.workload(), "gpt, replay or attached");
  }
  if (gpt && resolved.model().builtin() != "gpt") {
    return InvalidField("model",
                        "the workload gpt trains the builtin model gpt; drop spec and file, or "
                        "give the workload attached and a program that trains this model");
  }
  if ((gpt || replay) && resolved.device() == "cuda") {
    return InvalidField("device", absl::StrCat("is cuda, but the workload ", resolved.workload(),
                                               " computes on the CPU; give auto or cpu, or "
                                               "attach a program that computes on GPUs"));
  }
  if (gpt) TESSERA_RETURN_IF_ERROR(CheckGptDtypes(plan));
  TESSERA_RETURN_IF_ERROR(CheckMeshRunnable(resolved));
  TESSERA_RETURN_IF_ERROR(CheckHostsRunnable(resolved));
  // What will be built is checked when it is sealed.
  return resolved.model().built() ? absl::OkStatus() : CheckPlanRunnable(resolved, plan);
}

absl::Status CheckRunnable(const v1::JobSpec& resolved, const JobPlan& planned) {
  TESSERA_RETURN_IF_ERROR(CheckRunnable(resolved, planned.plan));
  TESSERA_RETURN_IF_ERROR(CheckGroupsRunnable(planned.layout));
  if (resolved.workload() != "gpt") return absl::OkStatus();
  return CheckGptSlots(planned.plan, planned.layout);
}

}  // namespace tessera
