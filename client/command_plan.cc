// tessera plan: cuts a model into units, without a coordinator.
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/command.h"
#include "client/job_input.h"
#include "client/tables.h"
#include "common/errors.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "coordinator/job_planner.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {
namespace {

struct PlanFlag {
  const char* flag;
  const char* field;
  const char* help;
};

// Flags that are a field of the job file under another name.
constexpr PlanFlag kFieldFlags[] = {
    {"--wrap", "wrap.policy", "which modules are units: class or none"},
    {"--strategy", "mesh.strategy", "how units are sharded [full_shard]"},
    {"--param_dtype", "mixed_precision.param_dtype", "dtype that units compute in [the model's]"},
    {"--reduce_dtype", "mixed_precision.reduce_dtype", "dtype of reduced gradients [param_dtype]"},
    {"--param_align_bytes", "wrap.param_align_bytes", "of each parameter's start; 0: none [16]"},
    {"--shard_align_bytes", "wrap.shard_align_bytes", "of each shard's start; 0: none [128]"},
    {"--unshard", "memory.unshard", "auto, resident or slots [auto]"},
    {"--prefetch", "memory.prefetch", "units gathered ahead [1]"},
    {"--max_live_units", "memory.max_live_units", "units whole at once; 0: as the tree asks [0]"},
    {"--accumulate_unsynchronized", "memory.accumulate_unsynchronized",
     "true: a gradient buffer for each unit [false]"},
    {"--optimizer", "optimizer.name", "adamw, adam or sgd [adamw]"},
};

struct PlanFlags {
  std::string model;
  std::string job;
  std::string wrap_classes;
  int world_size = 0;
  std::string fields[std::size(kFieldFlags)];
  std::shared_ptr<ClientFlags> client = std::make_shared<ClientFlags>();
};

absl::StatusOr<v1::JobSpec> LoadSpec(const PlanFlags& flags) {
  if (flags.model.empty() == flags.job.empty()) {
    return InvalidField("--model, --job", "give exactly one of them");
  }
  if (!flags.job.empty()) return LoadJob({.file = flags.job});
  v1::JobSpec spec;
  spec.set_name("plan");
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.model));
  TESSERA_ASSIGN_OR_RETURN(*spec.mutable_model()->mutable_spec(),
                           ParseModelSpec(text, flags.model));
  return spec;
}

absl::StatusOr<v1::CreatePlanResponse> MakePlan(const PlanFlags& flags, const CLI::App& command) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, LoadSpec(flags));
  for (size_t i = 0; i < std::size(kFieldFlags); ++i) {
    if (command.count(kFieldFlags[i].flag) == 0) continue;
    TESSERA_RETURN_IF_ERROR(
        Annotate(SetField(&spec, kFieldFlags[i].field, flags.fields[i]), kFieldFlags[i].flag));
  }
  if (command.count("--wrap_classes") > 0) {
    spec.mutable_wrap()->clear_wrap_classes();
    for (const absl::string_view name : absl::StrSplit(flags.wrap_classes, ',')) {
      spec.mutable_wrap()->add_wrap_classes(std::string(name));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const v1::JobSpec resolved, ResolveJobSpec(std::move(spec)));
  // A plan may be asked for at any world size, also one that the job would not run at.
  int world_size = flags.world_size;
  if (command.count("--world_size") == 0) {
    world_size = static_cast<int>(resolved.mesh().max_workers());
  } else if (world_size < 1 || world_size > kMaxWorkers) {
    return InvalidField("--world_size",
                        absl::StrCat("is ", world_size, "; give 1 to ", kMaxWorkers));
  }
  TESSERA_ASSIGN_OR_RETURN(JobPlan planned, PlanJob(resolved, world_size));
  v1::CreatePlanResponse plan;
  plan.mutable_plan()->Swap(&planned.plan);
  plan.mutable_layout()->Swap(&planned.layout);
  plan.mutable_forecast()->Swap(&planned.forecast);
  return plan;
}

int RunPlan(const PlanFlags& flags, const CLI::App& command) {
  const absl::StatusOr<v1::CreatePlanResponse> plan = MakePlan(flags, command);
  if (!plan.ok()) return Report(plan.status());
  if (!flags.client->json()) {
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
  command->add_option("--model", flags->model, "ModelSpec as JSON");
  command->add_option("--job", flags->job, "job file");
  command->add_option("--wrap_classes", flags->wrap_classes, "A,B: classes that are units");
  command->add_option("--world_size", flags->world_size, "ranks [mesh.max_workers]");
  for (size_t i = 0; i < std::size(kFieldFlags); ++i) {
    command->add_option(kFieldFlags[i].flag, flags->fields[i], kFieldFlags[i].help);
  }
  AddOutputFlag(*command, flags->client);
  command->callback([=] { *chosen = [=] { return RunPlan(*flags, *command); }; });
}

}  // namespace tessera
