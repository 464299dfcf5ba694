// tessera run: a coordinator, an agent and its workers on this machine, for one job.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/command.h"
#include "client/job_input.h"
#include "client/local_run.h"
#include "common/checkpoint_reader.h"
#include "common/errors.h"
#include "common/find_program.h"
#include "common/job_spec.h"
#include "common/process_env.h"
#include "common/safetensors_files.h"
#include "common/security_flags.h"
#include "common/status_macros.h"
#include "common/text_data.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

struct RunFlags {
  JobInput input;
  std::vector<std::string> program;
};

// Looks for the program that a job of the workload attached needs and no other has a use for.
absl::Status FindOwnProgram(const v1::JobSpec& spec, std::vector<std::string>& program) {
  const bool attached = spec.workload() == "attached";
  if (attached && program.empty()) {
    return InvalidField("PROGRAM",
                        "is not given, and the workload attached is a program of yours; "
                        "end the command with -- PROGRAM ARGS");
  }
  if (!attached && !program.empty()) {
    return InvalidField("PROGRAM",
                        absl::StrCat("\"", program[0],
                                     "\" has no place in a job with the "
                                     "built-in workload ",
                                     spec.workload(), "; drop it or set workload to attached"));
  }
  if (!attached) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  TESSERA_ASSIGN_OR_RETURN(program[0], FindProgram(program[0], env.path));
  return absl::OkStatus();
}

// Makes the paths of checkpoint.resume and checkpoint.import absolute, and looks whether there are
// files; whether they fit the model the workers see.
absl::Status FindValues(v1::CheckpointSpec* checkpoint) {
  std::error_code error;
  if (checkpoint->resume() != "none" && checkpoint->resume() != "auto") {
    checkpoint->set_resume(std::filesystem::absolute(checkpoint->resume(), error).string());
    TESSERA_RETURN_IF_ERROR(
        Annotate(CheckpointReader::Open(checkpoint->resume()).status(), "checkpoint.resume"));
  }
  if (checkpoint->import().empty()) return absl::OkStatus();
  checkpoint->set_import(std::filesystem::absolute(checkpoint->import(), error).string());
  return Annotate(ReadSafetensorsFolder(checkpoint->import()).status(), "checkpoint.import");
}

// The job as it will be sent, with everything about it checked that can be before a process is
// started.
absl::StatusOr<v1::JobSpec> Prepare(const JobInput& input) {
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec loaded, LoadJob(input));
  TESSERA_ASSIGN_OR_RETURN(v1::JobSpec spec, ResolveJobSpec(std::move(loaded)));
  if (spec.model().built()) TESSERA_RETURN_IF_ERROR(CheckRunnable(spec, v1::Plan()));
  for (const int64_t world_size : {spec.mesh().min_workers(), spec.mesh().max_workers()}) {
    if (spec.model().built()) break;  // what the ranks will build nobody knows yet
    TESSERA_ASSIGN_OR_RETURN(const JobPlan planned, PlanJob(spec, static_cast<int>(world_size)));
    TESSERA_RETURN_IF_ERROR(CheckRunnable(spec, planned));
  }
  // An attached program has its own idea of its data.
  if (spec.workload() == "gpt") {
    TESSERA_RETURN_IF_ERROR(
        LoadText(spec.data(), spec.global_batch(), spec.model().context()).status());
  }
  // Workers may have another working directory than this process.
  std::error_code error;
  if (!spec.data().empty()) spec.set_data(std::filesystem::absolute(spec.data(), error).string());
  const std::string dir = spec.checkpoint().dir().empty() ? absl::StrCat(spec.name(), ".tessera")
                                                          : spec.checkpoint().dir();
  spec.mutable_checkpoint()->set_dir(
      std::filesystem::absolute(dir, error).lexically_normal().string());
  TESSERA_RETURN_IF_ERROR(CheckWritableDirectory("checkpoint.dir", spec.checkpoint().dir()));
  TESSERA_RETURN_IF_ERROR(FindValues(spec.mutable_checkpoint()));
  return spec;
}

int Run(RunFlags flags) {
  // The cluster is this process's own and on loopback.
  ForgetSecurity();
  const absl::StatusOr<v1::JobSpec> spec = Prepare(flags.input);
  if (!spec.ok()) return Report(spec.status());
  const absl::Status found = FindOwnProgram(*spec, flags.program);
  if (!found.ok()) return Report(found);
  const absl::StatusOr<LocalBinaries> binaries = FindLocalBinaries(OwnDirectory());
  if (!binaries.ok()) return Report(binaries.status());
  return LocalRun(*spec, *binaries, std::move(flags.program)).Run();
}

}  // namespace

void AddRunCommand(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("run", "A local cluster for one job");
  auto flags = std::make_shared<RunFlags>();
  JobInput* input = &flags->input;
  command->add_option("--job", input->file, "job file")->required();
  command->add_option("--set", input->sets, "PATH=VALUE: changes a field of the job file")
      ->allow_extra_args(false);
  command->add_option_function<int64_t>(
      "--workers", [=](const int64_t& workers) { input->workers = workers; },
      "worker processes: sets mesh.min_workers and mesh.max_workers");
  command->add_option("program", flags->program,
                      "-- PROGRAM ARGS: what each rank of a job with the workload attached runs");
  command->callback([=] { *chosen = [=] { return Run(*flags); }; });
}

}  // namespace tessera
