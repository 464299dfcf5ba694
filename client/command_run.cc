// tessera run: a coordinator, an agent and its workers on this machine, for one job.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/job_input.h"
#include "client/local_run.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "common/text_data.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

// The job as it will be sent, with everything about it checked that can be before a process is
// started.
absl::StatusOr<v1::JobSpec> Prepare(const JobInput& input) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec loaded, LoadJob(input));
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, ResolveJobSpec(std::move(loaded)));
  for (const int64_t world_size : {spec.mesh().min_workers(), spec.mesh().max_workers()}) {
    TESSERA_ASSIGN_OR_RETURN(const JobPlan planned, PlanJob(spec, static_cast<int>(world_size)));
    TESSERA_RETURN_IF_ERROR(CheckRunnable(spec, planned.plan));
  }
  TESSERA_RETURN_IF_ERROR(
      LoadText(spec.data(), spec.global_batch(), spec.model().context()).status());
  // Workers may have another working directory than this process.
  std::error_code error;
  if (!spec.data().empty()) spec.set_data(std::filesystem::absolute(spec.data(), error).string());
  const std::string dir = spec.checkpoint().dir().empty() ? absl::StrCat(spec.name(), ".tessera")
                                                          : spec.checkpoint().dir();
  spec.mutable_checkpoint()->set_dir(
      std::filesystem::absolute(dir, error).lexically_normal().string());
  TESSERA_RETURN_IF_ERROR(CheckWritableDirectory("checkpoint.dir", spec.checkpoint().dir()));
  return spec;
}

int Run(const JobInput& input) {
  const absl::StatusOr<v1::JobSpec> spec = Prepare(input);
  if (!spec.ok()) return Report(spec.status());
  const absl::StatusOr<LocalBinaries> binaries = FindLocalBinaries(OwnDirectory());
  if (!binaries.ok()) return Report(binaries.status());
  return LocalRun(*spec, *binaries).Run();
}

}  // namespace

void AddRunCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("run", "A local cluster for one job");
  auto input = std::make_shared<JobInput>();
  command->add_option("--job", input->file, "job file")->required();
  command->add_option("--set", input->sets, "PATH=VALUE: changes a field of the job file")
      ->allow_extra_args(false);
  command->add_option_function<int64_t>(
      "--workers", [=](const int64_t& workers) { input->workers = workers; },
      "worker processes: sets mesh.min_workers and mesh.max_workers");
  command->callback([=] { *chosen = [=] { return Run(*input); }; });
}

}  // namespace tessera
