// tessera plan: cuts a model into units, without a coordinator.
#include <CLI/CLI.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/command.h"
#include "client/job_input.h"
#include "client/plan_compare.h"
#include "client/plan_flags.h"
#include "client/plan_page.h"
#include "client/plan_table.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/json_message.h"
#include "common/status_macros.h"
#include "coordinator/explain.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {
namespace {

struct PlanCommand {
  std::shared_ptr<PlanFlags> plan = std::make_shared<PlanFlags>();
  std::string output = "table";
  std::string compare;
  std::optional<std::string> explain;
};

v1::CreatePlanResponse ToResponse(JobPlan planned) {
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(&planned.plan);
  plan.mutable_layout()->Swap(&planned.layout);
  plan.mutable_forecast()->Swap(&planned.forecast);
  return plan;
}

struct Planned {
  v1::JobSpec resolved;
  JobPlan plan;
};

absl::StatusOr<Planned> MakePlanned(const PlanFlags& flags) {
  Planned planned;
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadPlanSpec(flags));
  TESSERA_ASSIGN_OR_RETURN(planned.resolved, ResolveJobSpec(std::move(spec)));
  TESSERA_ASSIGN_OR_RETURN(const int world_size, PlannedWorldSize(flags, planned.resolved));
  TESSERA_ASSIGN_OR_RETURN(planned.plan, PlanJob(planned.resolved, world_size));
  return planned;
}

absl::StatusOr<std::string> PlanOne(const PlanCommand& command) {
  TESSERA_ASSIGN_OR_RETURN(Planned planned, MakePlanned(*command.plan));
  const JobPlan& plan = planned.plan;
  if (command.output == "table") return PlanTable(plan.plan, plan.layout, plan.forecast);
  if (command.output == "json") return ToJson(ToResponse(std::move(planned.plan)));
  TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelOf(planned.resolved));
  return PlanPage({model, plan.plan, plan.layout, plan.forecast, planned.resolved});
}

// Of a plan that was printed, nothing can be changed; a model or a job is planned with the flags.
absl::StatusOr<ComparedPlan> LoadCompared(const std::string& file, PlanFlags flags) {
  ComparedPlan compared;
  compared.source = file;
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file));
  const PlanFileKind kind = KindOfPlanFile(text);
  if (kind == PlanFileKind::kPlan) {
    if (ChangesPlan(flags)) {
      return InvalidField(file,
                          "is a plan already, and flags would change it; drop them, or "
                          "compare job files or models");
    }
    TESSERA_RETURN_IF_ERROR(
        ParseJson(text, file, "what `tessera plan --output=json` prints", &compared.plan));
    if (compared.plan.plan().units_size() != compared.plan.layout().units_size()) {
      return InvalidField(file,
                          "has more or fewer units in its layout than in its plan; print it "
                          "again with `tessera plan --output=json`");
    }
    return compared;
  }
  (kind == PlanFileKind::kModel ? flags.model : flags.job) = file;
  absl::StatusOr<Planned> planned = MakePlanned(flags);
  if (!planned.ok()) return Annotate(planned.status(), file);
  compared.plan = ToResponse(std::move(planned->plan));
  return compared;
}

absl::StatusOr<std::string> Compare(const PlanCommand& command) {
  const PlanFlags& flags = *command.plan;
  for (const std::string& source : {flags.model, flags.hf_config, flags.safetensors, flags.job}) {
    if (source.empty()) continue;
    return InvalidField(
        "--compare", absl::StrCat("stands beside \"", source, "\"; its files say what is planned"));
  }
  const std::vector<std::string> files = absl::StrSplit(command.compare, ',');
  if (files.size() != 2 || files[0].empty() || files[1].empty()) {
    return InvalidField("--compare",
                        absl::StrCat("\"", command.compare, "\" is not two files; give FILE,FILE"));
  }
  TESSERA_ASSIGN_OR_RETURN(const ComparedPlan a, LoadCompared(files[0], *command.plan));
  TESSERA_ASSIGN_OR_RETURN(const ComparedPlan b, LoadCompared(files[1], *command.plan));
  if (command.output == "table") return CompareTable(a, b);
  return command.output == "json" ? CompareJson(a, b) : ComparePage(a, b);
}

absl::StatusOr<std::string> Explain(const PlanCommand& command) {
  if (!command.compare.empty()) return InvalidField("--explain", "stands beside --compare");
  if (command.output == "html") {
    return InvalidField("--output", "html shows plans; with --explain give table or json");
  }
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadPlanSpec(*command.plan));
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(std::move(spec)));
  const absl::StatusOr<v1::ExplainModuleResponse> explained =
      ExplainModule(resolved, *command.explain);
  if (!explained.ok()) return Annotate(explained.status(), "--explain");
  return command.output == "json" ? ToJson(*explained) : ExplainText(*explained);
}

int RunPlan(const PlanCommand& command) {
  const absl::StatusOr<std::string> text = command.explain.has_value() ? Explain(command)
                                           : command.compare.empty()   ? PlanOne(command)
                                                                       : Compare(command);
  if (!text.ok()) return Report(text.status());
  Print(*text);
  return 0;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("plan", "Cut a model into units, offline");
  auto flags = std::make_shared<PlanCommand>();
  AddPlanFlags(*command, flags->plan);
  command->add_option("--explain", flags->explain,
                      "FQN: why this module is or is not a unit; empty: the root");
  command->add_option("--compare", flags->compare,
                      "FILE,FILE: plans of two jobs, models or printed plans side by side");
  command->add_option("--output", flags->output, "table, json or html [table]")
      ->check(CLI::IsMember({"table", "json", "html"}));
  command->callback([=] { *chosen = [=] { return RunPlan(*flags); }; });
}

}  // namespace tessera
