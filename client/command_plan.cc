// tessera plan: cuts a model into units, without a coordinator.
#include <CLI/CLI.hpp>

#include "client/command.h"
#include "client/plan_flags.h"
#include "client/plan_table.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {
namespace {

absl::StatusOr<v1::CreatePlanResponse> MakePlan(const PlanFlags& flags) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadPlanSpec(flags));
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(std::move(spec)));
  TESSERA_ASSIGN_OR_RETURN(const int world_size, PlannedWorldSize(flags, resolved));
  TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(resolved, world_size));
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(&planned.plan);
  plan.mutable_layout()->Swap(&planned.layout);
  plan.mutable_forecast()->Swap(&planned.forecast);
  return plan;
}

int RunPlan(const PlanFlags& flags, const ClientFlags& client) {
  const absl::StatusOr<v1::CreatePlanResponse> plan = MakePlan(flags);
  if (!plan.ok()) return Report(plan.status());
  if (!client.json()) {
    Print(PlanTable(plan->plan(), plan->layout(), plan->forecast()));
    return 0;
  }
  const absl::StatusOr<std::string> json = ToJson(*plan);
  if (!json.ok()) return Report(json.status());
  Print(*json);
  return 0;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("plan", "Cut a model into units, offline");
  auto flags = std::make_shared<PlanFlags>();
  auto client = std::make_shared<ClientFlags>();
  AddPlanFlags(*command, flags);
  AddOutputFlag(*command, client);
  command->callback([=] { *chosen = [=] { return RunPlan(*flags, *client); }; });
}

}  // namespace tessera
