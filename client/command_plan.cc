// tessera plan: cuts a model into units, without a coordinator.
#include <CLI/CLI.hpp>

#include "client/command.h"
#include "client/plan_flags.h"
#include "client/plan_page.h"
#include "client/plan_table.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {
namespace {

struct PlanCommand {
  std::shared_ptr<PlanFlags> plan = std::make_shared<PlanFlags>();
  std::string output = "table";
};

// What is printed for a plan.
absl::StatusOr<std::string> Render(const v1::JobSpec& resolved, JobPlan planned,
                                   const std::string& output) {
  if (output == "table") return PlanTable(planned.plan, planned.layout, planned.forecast);
  if (output == "html") {
    TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(resolved));
    return PlanPage(
        {model, planned.plan, planned.layout, planned.forecast, resolved.memory().device_memory()});
  }
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(&planned.plan);
  plan.mutable_layout()->Swap(&planned.layout);
  plan.mutable_forecast()->Swap(&planned.forecast);
  return ToJson(plan);
}

absl::StatusOr<std::string> MakePlan(const PlanCommand& command) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadPlanSpec(*command.plan));
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(std::move(spec)));
  TESSERA_ASSIGN_OR_RETURN(const int world_size, PlannedWorldSize(*command.plan, resolved));
  TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(resolved, world_size));
  return Render(resolved, std::move(planned), command.output);
}

int RunPlan(const PlanCommand& command) {
  const absl::StatusOr<std::string> text = MakePlan(command);
  if (!text.ok()) return Report(text.status());
  Print(*text);
  return 0;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("plan", "Cut a model into units, offline");
  auto flags = std::make_shared<PlanCommand>();
  AddPlanFlags(*command, flags->plan);
  command->add_option("--output", flags->output, "table, json or html [table]")
      ->check(CLI::IsMember({"table", "json", "html"}));
  command->callback([=] { *chosen = [=] { return RunPlan(*flags); }; });
}

}  // namespace tessera
